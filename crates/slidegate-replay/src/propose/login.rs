//! Which paths are for logging in, or give away something that must not be guessed.

/// Paths that are counted, so that a scanner cannot fill the memory.
pub(super) const MAX_PATHS: usize = 1000;
/// Methods of login attempts. Loading the form is not an attempt.
pub(super) const METHODS: [&str; 2] = ["POST", "PUT"];
/// The longest path that is looked at.
const MAX_PATH_BYTES: usize = 200;

/// Segments of such paths, in lower case.
const SEGMENTS: [&str; 24] = [
    "2fa",
    "auth",
    "authenticate",
    "forgot",
    "forgot-password",
    "login",
    "login.php",
    "logon",
    "mfa",
    "oauth",
    "otp",
    "password",
    "passwords",
    "register",
    "reset",
    "reset-password",
    "session",
    "sessions",
    "sign-in",
    "sign-up",
    "signin",
    "signup",
    "token",
    "wp-login.php",
];

/// Whether a path has one of these segments, whole and in any case.
pub(super) fn is_login(path: &str) -> bool {
    path.len() <= MAX_PATH_BYTES
        && path.split('/').any(|segment| SEGMENTS.iter().any(|known| segment.eq_ignore_ascii_case(known)))
}
