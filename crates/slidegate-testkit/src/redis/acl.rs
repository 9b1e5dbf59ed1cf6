//! The least that a Redis user must be allowed for the store to work.
//!
//! A script runs with its caller's rights: what it calls is in the list as well. Every server of
//! the tests has this user from its command line, so that it outlives restarts; users are not
//! replicated.

/// The user's name.
pub const USER: &str = "slidegate";

/// The user's password.
pub const PASSWORD: &str = "loopback-only";

/// Keys and commands, as they follow `ACL SETUSER slidegate on >PASSWORD`. Each name is known to
/// Redis 7.0.
///
/// The third line is what scripts call, the fourth what the denial cache needs. `role` is for
/// Sentinel, whose clients ask the node they are sent to whether it is the master; `cluster|slots`
/// and `asking` are for clusters.
pub const MINIMUM: &str = "~sg1:* resetchannels &sg1:* -@all \
    +evalsha +script|load +ping +hello +auth +select \
    +time +get +set +getrange +setrange +strlen +exists +rename +pexpire +del \
    +publish +subscribe \
    +role +cluster|slots +asking";

/// What may be permitted besides: the first for examinations, the others to forget a whole policy.
pub const BESIDES: &str = "+info +scan +dbsize";

/// What is permitted besides where servers have the native module: to ask for it, and to run it.
pub const MODULE: &str = "+command|info +slidegate.check1 +slidegate.decide +slidegate.change";

/// The user as lines of a configuration have it: `user` and what follows.
pub(super) fn directive(has_module: bool) -> Vec<String> {
    let password = format!(">{PASSWORD}");
    let more = if has_module { MODULE } else { "" };
    let rights = MINIMUM.split_whitespace().chain(more.split_whitespace()).map(str::to_owned);
    [USER.to_owned(), "on".to_owned(), password].into_iter().chain(rights).collect()
}

/// What stands before the host in an address: `slidegate:PASSWORD@`.
pub fn userinfo() -> String {
    format!("{USER}:{PASSWORD}@")
}
