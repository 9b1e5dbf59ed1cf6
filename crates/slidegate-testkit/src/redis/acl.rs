//! The minimum permissions of a Redis user for the store to work.
//!
//! A script runs with its caller's permissions, so the commands it calls are listed too. Every test
//! server has this user from its command line, so it survives restarts; users are not replicated.

/// The user's name.
pub const USER: &str = "slidegate";

/// The user's password.
pub const PASSWORD: &str = "loopback-only";

/// Keys and commands, in the form that follows `ACL SETUSER slidegate on >PASSWORD`. Redis 7.0
/// knows each name.
///
/// The third line is for scripts, the fourth for the denial cache. `role` is for Sentinel, whose
/// clients ask a node whether it is the master; `cluster|slots` and `asking` are for clusters.
pub const MINIMUM: &str = "~sg1:* resetchannels &sg1:* -@all \
    +evalsha +script|load +ping +hello +auth +select \
    +time +get +set +getrange +setrange +strlen +exists +rename +pexpire +del \
    +publish +subscribe \
    +role +cluster|slots +asking";

/// Optional permissions: the first for examinations, the others to reset a whole policy.
pub const BESIDES: &str = "+info +scan +dbsize";

/// Additional permissions for servers with the native module: to detect and run it.
pub const MODULE: &str = "+command|info +slidegate.check1 +slidegate.decide +slidegate.change";

/// The user in the form of a config file: `user` and its arguments.
pub(super) fn directive(has_module: bool) -> Vec<String> {
    let password = format!(">{PASSWORD}");
    let more = if has_module { MODULE } else { "" };
    let rights = MINIMUM.split_whitespace().chain(more.split_whitespace()).map(str::to_owned);
    [USER.to_owned(), "on".to_owned(), password].into_iter().chain(rights).collect()
}

/// The user info before the host in a URL: `slidegate:PASSWORD@`.
pub fn userinfo() -> String {
    format!("{USER}:{PASSWORD}@")
}
