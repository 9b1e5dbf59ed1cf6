//! The error of all packages: a code that programs match on, and a text for people.

/// Why something could not be built or carried out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BindingError {
    /// One of `invalid_quota`, `invalid_policy`, `invalid_address`, `invalid_headers`, `invalid_request`,
    /// `unknown_policy`, `missing_attribute`, `unknown_cost`, `invalid_ticket`, `store`, `closed` and
    /// `internal`.
    pub code: &'static str,
    /// What is invalid, what was given, what is expected and how to fix it. Several lines if a file of
    /// policies has several mistakes.
    pub message: String,
}

impl BindingError {
    /// An error of this code.
    pub fn new(code: &'static str, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    /// A value of the caller's that no request can have.
    pub fn request(message: impl Into<String>) -> Self {
        Self::new("invalid_request", message)
    }
}

impl From<slidegate::Error> for BindingError {
    fn from(error: slidegate::Error) -> Self {
        let code = match &error {
            error if error.is_quota() => "invalid_quota",
            error if error.is_policy() => "invalid_policy",
            error if error.is_address() => "invalid_address",
            error if error.is_header() => "invalid_headers",
            error if error.is_unknown_policy() => "unknown_policy",
            error if error.is_missing_attribute() => "missing_attribute",
            error if error.is_unknown_cost() => "unknown_cost",
            error if error.is_ticket() => "invalid_ticket",
            error if error.is_store() => "store",
            _ => "internal",
        };
        Self::new(code, error.to_string())
    }
}

impl std::fmt::Display for BindingError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for BindingError {}
