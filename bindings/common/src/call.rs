//! A request as a caller gives it.

use std::net::IpAddr;
use std::str;

use slidegate::{Cost, Quota, Request, Value};

/// What a request costs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Amount {
    /// A number.
    Number(u64),
    /// Numbers by name, of which policies count one each or their sum.
    Named(Vec<(String, u64)>),
}

impl Amount {
    /// As the library takes it.
    pub(crate) fn cost(&self) -> Cost<'_> {
        match self {
            Self::Number(cost) => (*cost).into(),
            Self::Named(costs) => {
                let costs: Vec<_> = costs.iter().map(|(name, cost)| (name.as_str(), *cost)).collect();
                costs.as_slice().into()
            }
        }
    }
}

/// A request.
#[derive(Debug, Clone, Default)]
pub struct Call {
    /// Names and values. A name that no policy uses is ignored.
    pub attributes: Vec<(String, Vec<u8>)>,
    /// What it costs. `None` is 1, and what a policy estimates for reservations.
    pub cost: Option<Amount>,
    /// The only policy that it is decided under.
    pub policy: Option<String>,
    /// Replaces the quotas of the policies, for this request.
    pub quota: Option<Quota>,
    /// An idempotency key: a check that is repeated with it is answered as before, and charged once.
    pub id: Option<String>,
    /// Whether the answer has the response's header fields.
    pub wants_headers: bool,
}

impl Call {
    /// As the library takes it. The text of attributes in `addresses` is a network address, if it can be
    /// read as one.
    pub(crate) fn request(&self, addresses: &[String]) -> Request<'_> {
        let mut request = Request::new();
        if let Some(cost) = &self.cost {
            request = request.with_cost(cost.cost());
        }
        for (name, text) in &self.attributes {
            let address: Option<IpAddr> = if addresses.contains(name) {
                str::from_utf8(text).ok().and_then(|text| text.parse().ok())
            } else {
                None
            };
            request = request.with(name, address.map_or(Value::Bytes(text), Value::Address));
        }
        if let Some(policy) = &self.policy {
            request = request.under(policy);
        }
        match self.quota {
            Some(quota) => request.with_quota(quota),
            None => request,
        }
    }
}
