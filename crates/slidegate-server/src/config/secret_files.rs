//! Warnings about files with secrets that every user of the machine may read.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use lined_config::{Node, Section};

use super::environment::Outside;

/// Config keys that name a file with a secret.
const KEYS: [(&str, &str); 6] = [
    ("server", "key_file"),
    ("grpc", "key_file"),
    ("resp", "key_file"),
    ("resp", "password_file"),
    ("store", "key_file"),
    ("webhook", "secret_file"),
];
/// Config keys that hold a secret. A URL holds one if it has a password.
const INLINE: [(&str, &str); 4] =
    [("store", "redis"), ("store", "key_secret"), ("resp", "password"), ("webhook", "secret")];
/// Permission bit: others may read the file.
const OTHERS_READ: u32 = 0o004;
/// Permission bit: others may enter the directory.
const OTHERS_ENTER: u32 = 0o001;

/// Warnings about readable files that the config or the environment names.
pub(super) fn warnings(top: &Section<'_>, outside: &Outside) -> Vec<String> {
    let of_file = KEYS.iter().filter_map(|(section, key)| {
        let path = top.get(section)?.get(key).and_then(Node::scalar)?;
        Some((format!("{section}: {key}"), Path::new(path)))
    });
    let of_variables = outside.secret_files.iter().map(|(name, path)| (name.clone(), path.as_path()));
    let exposed = of_file.chain(of_variables).filter(|(_, path)| is_open(path));
    let warning = |(name, path): (String, &Path)| {
        let path = path.display();
        format!("{name}: everybody on this machine may read `{path}`; run `chmod o-r` on it")
    };
    exposed.map(warning).collect()
}

/// A warning about a readable config file that holds a secret.
pub(super) fn inline(file: &Path, content: &Node) -> Option<String> {
    let is_secret = |(section, key): &&(&str, &str)| {
        let value = content.get(section).and_then(|section| section.get(key)).and_then(Node::scalar);
        value.is_some_and(|value| *key != "redis" || value.contains('@') || value.contains("pass="))
    };
    let (section, key) = INLINE.iter().find(is_secret).filter(|_| is_open(file))?;
    Some(format!(
        "{section}: {key}: everybody on this machine may read the secret in `{}`; run `chmod o-r` on it",
        file.display()
    ))
}

fn is_open(path: &Path) -> bool {
    let may = |path: &Path, what| path.metadata().is_ok_and(|found| found.mode() & what != 0);
    let folder = path.parent().filter(|folder| *folder != Path::new("")).unwrap_or(Path::new("."));
    path.is_file() && may(path, OTHERS_READ) && may(folder, OTHERS_ENTER)
}

#[cfg(test)]
mod tests {
    use std::fs::{Permissions, set_permissions};
    use std::os::unix::fs::PermissionsExt;

    use slidegate_config::policies::MINIMAL;
    use slidegate_testkit::TempDir;

    use super::Path;
    use crate::config::tests::parse_with;
    use crate::config::{Config, Outside};

    /// Nobody notices a secret that every account on the machine can read.
    #[test]
    fn files_with_secrets_that_everybody_may_read_are_warned_about() {
        let folder = TempDir::new("exposed");
        set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
        let secret = folder.file("secret", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\n");
        let warnings = |mode: u32, text: &str, outside: &Outside| {
            set_permissions(&secret, Permissions::from_mode(mode)).unwrap();
            parse_with(text, outside).exposed
        };
        let webhook = format!("webhook: {{url: 'https://h', secret_file: '{secret}'}}");
        let resp = format!("resp: {{listen: '127.0.0.1:1', password_file: '{secret}'}}");
        let outside = Outside {
            secret_files: vec![("SLIDEGATE_REDIS_FILE".to_owned(), secret.clone().into())],
            ..Outside::default()
        };
        for (name, text, outside) in [
            ("webhook: secret_file", webhook.as_str(), &Outside::default()),
            ("resp: password_file", &resp, &Outside::default()),
            ("SLIDEGATE_REDIS_FILE", "", &outside),
        ] {
            let expected =
                format!("{name}: everybody on this machine may read `{secret}`; run `chmod o-r` on it");
            for mode in [0o644, 0o604, 0o666] {
                assert_eq!(warnings(mode, text, outside), std::slice::from_ref(&expected), "{mode:o}");
            }
            for mode in [0o600, 0o640, 0o400] {
                assert_eq!(warnings(mode, text, outside), [""; 0], "{mode:o}");
            }
            set_permissions(folder.path(), Permissions::from_mode(0o700)).unwrap();
            assert_eq!(warnings(0o644, text, outside), [""; 0], "nobody may enter the folder");
            set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
        }
    }

    #[test]
    fn config_files_with_a_secret_that_everybody_may_read_are_warned_about() {
        let folder = TempDir::new("exposed-config");
        set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
        for (text, key) in [
            ("store: {redis: 'redis://:pw@h'}", Some("store: redis")),
            ("store: {redis: 'redis://h'}", None),
            ("store: {redis: 'unix:///run/redis.sock?pass=pw'}", Some("store: redis")),
            ("store: {redis: 'unix:///run/redis.sock'}", None),
            ("store: {redis: 'redis+sentinel://h/limits?sentinel_pass=pw'}", Some("store: redis")),
            ("store: {redis: 'redis://h', key_secret: s}", Some("store: key_secret")),
            ("resp: {listen: '127.0.0.1:1', password: s}", Some("resp: password")),
            (
                "webhook: {url: 'https://h', secret: whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw}",
                Some("webhook: secret"),
            ),
        ] {
            let file = folder.file("slidegate.yaml", format!("{MINIMAL}\n{text}\n"));
            for (mode, is_open) in [(0o644, true), (0o640, false)] {
                set_permissions(&file, Permissions::from_mode(mode)).unwrap();
                let config = Config::load(Path::new(&file), &Outside::default()).unwrap();
                let expected = key.filter(|_| is_open).map(|key| {
                    format!("{key}: everybody on this machine may read the secret in `{file}`; run `chmod o-r` on it")
                });
                assert_eq!(config.exposed, Vec::from_iter(expected), "{text}");
            }
        }
    }
}
