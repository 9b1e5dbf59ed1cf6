//! A shared store of somebody's own: a thread that owns a [`MemoryStore`] and answers on a TCP port,
//! and its client, with all that the service asks of a store but reservations.
//!
//! A message and its reply are a length and words, in which bytes are hexadecimal after a dot. There
//! is a connection per call.

use std::collections::{BTreeMap, HashMap};
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream as Connection};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use slidegate::internal::{PerCharge, Waits, micros, new_id};
use slidegate::store::{
    BoxFuture, Charge, ControlDocument, ControlDocumentId, DecideError, InstanceRecord, NodeState,
    ServiceStore, SharedStore, StoreFailure,
};
use slidegate::{
    Decision, Error, Gate, MemoryStore, PolicySet, Quota, Request, Verdict, clock::Timestamp, verb::Verb,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::callers::LATER;

type Words = Vec<String>;

const VERBS: [Verb; 4] = [Verb::Check, Verb::Peek, Verb::Refund, Verb::Penalize];
/// Words of a charge: policy, key, limit, window in microseconds, algorithm, verb and cost.
const CHARGE: usize = 7;
/// Words of a decision.
const DECISION: usize = 9;

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(".".to_owned(), |hex, byte| format!("{hex}{byte:02x}"))
}

fn bytes(hex: &str) -> Vec<u8> {
    (1..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
}

fn number(word: &str) -> u64 {
    word.parse().unwrap()
}

fn words(text: Vec<u8>) -> Words {
    String::from_utf8(text).unwrap().split(' ').filter(|word| !word.is_empty()).map(str::to_owned).collect()
}

fn framed(words: &[String]) -> Vec<u8> {
    let body = words.join(" ").into_bytes();
    [u32::try_from(body.len()).unwrap().to_be_bytes().to_vec(), body].concat()
}

fn write(one: &Decision) -> [String; DECISION] {
    let Waits { retry_us, reset_us, frees_us } = one.waits;
    let (denied, at_us) = (u64::from(one.is_denied()), one.at.as_micros());
    [denied, one.limit, one.used, one.remaining, one.cost, at_us, retry_us, reset_us, frees_us]
        .map(|number| number.to_string())
}

fn read(words: &[String]) -> PerCharge<Decision> {
    let decision = |words: &[String]| {
        let words: &[String; DECISION] = words.try_into().unwrap();
        let [denied, limit, used, remaining, cost, at_us, retry_us, reset_us, frees_us] =
            words.each_ref().map(|word| number(word));
        let verdict = if denied == 1 { Verdict::Deny } else { Verdict::Allow };
        let waits = Waits { retry_us, reset_us, frees_us };
        let unused = Decision::unused(limit, Timestamp::from_micros(at_us));
        Decision { verdict, used, remaining, cost, waits, ..unused }
    };
    words.chunks(DECISION).map(decision).collect()
}

/// What the thread owns.
struct Data {
    gate: Gate<MemoryStore>,
    /// Replies to repeated calls.
    repeated: HashMap<Words, Words>,
    /// Values by name. Each has an end, and begins with a version.
    values: BTreeMap<String, (Timestamp, Words)>,
}

/// Serves this memory under these policies until the process ends. Returns the port.
pub(crate) fn serve(policies: PolicySet, memory: MemoryStore) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let gate = Gate::with_memory(policies, memory);
    let mut data = Data { gate, repeated: HashMap::new(), values: BTreeMap::new() };
    std::thread::spawn(move || {
        for connection in listener.incoming().map_while(Result::ok) {
            let _ = data.serve(connection);
        }
    });
    port
}

impl Data {
    fn serve(&mut self, mut connection: Connection) -> io::Result<()> {
        let mut length = [0; 4];
        connection.read_exact(&mut length)?;
        let mut body = vec![0; u32::from_be_bytes(length) as usize];
        connection.read_exact(&mut body)?;
        let call = words(body);
        let reply = self.repeated.get(&call).cloned().unwrap_or_else(|| self.answer(&call));
        if call[0] == "once" && read(&reply).iter().all(Decision::is_allowed) {
            self.repeated.insert(call, reply.clone());
        }
        connection.write_all(&framed(&reply))
    }

    fn answer(&mut self, call: &[String]) -> Words {
        let now = self.gate.store().now();
        self.values.retain(|_, (end, _)| *end > now);
        match (call[0].as_str(), &call[1..]) {
            ("apply", charges) | ("once", [_, charges @ ..]) => {
                let requests = requests(charges);
                let decisions = self.gate.apply(&requests);
                decisions.iter().flat_map(|one| write(one.decision())).collect()
            }
            ("reset", charges) => {
                let requests = requests(charges);
                let reset = requests.iter().filter(|one| self.gate.reset(one).unwrap());
                vec![reset.count().to_string()]
            }
            // Replaces the value if it has this version.
            ("put", [name, lasts_us, version, value @ ..]) => {
                let found = self.values.get(name).map_or(".", |(_, value)| &value[0]);
                let is_found = version == "any" || found == version;
                if is_found {
                    let end = now + Duration::from_micros(number(lasts_us));
                    self.values.insert(name.clone(), (end, value.to_vec()));
                }
                vec![u64::from(is_found).to_string()]
            }
            ("list", [prefix]) => {
                let values = self.values.iter().filter_map(|(name, (_, value))| {
                    let name = name.strip_prefix(prefix)?.to_owned();
                    Some(std::iter::once(name).chain(value.iter().cloned()))
                });
                values.flatten().collect()
            }
            _ => Words::new(),
        }
    }
}

/// Makes requests of charges. They come with their quotas.
fn requests(charges: &[String]) -> Vec<Request<'_>> {
    let requests = charges.chunks(CHARGE).map(|charge| {
        let [limit, window_us, verb, cost] = [2, 3, 5, 6].map(|at: usize| number(&charge[at]));
        let quota = Quota::new(limit, Duration::from_micros(window_us)).unwrap();
        let quota = quota.with_algorithm(charge[4].parse().unwrap());
        let request = Request::new().with("key", charge[1].as_str()).under(&charge[0]).with_quota(quota);
        request.with_verb(VERBS[usize::try_from(verb).unwrap()]).with_cost(cost)
    });
    requests.collect()
}

/// The client.
#[derive(Debug)]
pub(crate) struct TcpStore {
    port: u16,
    instance: String,
    is_connected: AtomicBool,
}

impl TcpStore {
    pub(crate) fn new(port: u16) -> Self {
        Self { port, instance: hex(&new_id().to_le_bytes()), is_connected: AtomicBool::new(true) }
    }

    async fn call(&self, call: Words) -> Result<Words, StoreFailure> {
        let replied = timeout(LATER, async {
            let mut connection = TcpStream::connect(("127.0.0.1", self.port)).await?;
            connection.write_all(&framed(&call)).await?;
            let mut body = vec![0; connection.read_u32().await? as usize];
            connection.read_exact(&mut body).await?;
            Ok::<_, io::Error>(words(body))
        });
        let replied = replied.await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
        self.is_connected.store(replied.is_ok(), Ordering::Relaxed);
        replied.map_err(|error| {
            StoreFailure::new("connection", format!("own store at port {}: {error}", self.port))
        })
    }

    /// Makes a call about charges.
    async fn decide(&self, call: &[&str], charges: &[Charge<'_>]) -> Result<Words, StoreFailure> {
        let of_charge = |charge: &Charge<'_>| -> [String; CHARGE] {
            let (quota, verb) =
                (charge.quota(), VERBS.iter().position(|verb| *verb == charge.verb()).unwrap());
            let [limit, window_us] = [quota.limit(), micros(quota.window())].map(|number| number.to_string());
            let (policy, key) = (charge.policy_name().to_owned(), hex(&charge.key().to_bytes()));
            let algorithm = quota.algorithm().to_string();
            [policy, key, limit, window_us, algorithm, verb.to_string(), charge.cost().to_string()]
        };
        let call = call.iter().map(|word| (*word).to_owned());
        self.call(call.chain(charges.iter().flat_map(of_charge)).collect()).await
    }

    /// A call about values: whether it did what it says, or what it found.
    fn ask(&self, call: &[&str]) -> BoxFuture<'_, Result<Words, Error>> {
        let call = call.iter().map(|word| (*word).to_owned()).collect();
        Box::pin(async { self.call(call).await.map_err(|failure| Error::store(failure.to_string())) })
    }
}

fn undecided(failure: StoreFailure) -> DecideError {
    DecideError { failure, denied: None }
}

impl SharedStore for TcpStore {
    async fn apply(&self, charges: &[Charge<'_>]) -> Result<PerCharge<Decision>, DecideError> {
        Ok(read(&self.decide(&["apply"], charges).await.map_err(undecided)?))
    }

    async fn check_once(&self, charges: &[Charge<'_>], id: &str) -> Result<PerCharge<Decision>, DecideError> {
        Ok(read(&self.decide(&["once", &hex(id.as_bytes())], charges).await.map_err(undecided)?))
    }

    async fn reset(&self, charges: &[Charge<'_>]) -> Result<bool, StoreFailure> {
        Ok(self.decide(&["reset"], charges).await? != ["0"])
    }
}

impl ServiceStore for TcpStore {
    fn url(&self) -> String {
        format!("own://127.0.0.1:{}", self.port)
    }

    fn nodes(&self) -> Vec<NodeState> {
        let connected = self.is_connected.load(Ordering::Relaxed);
        vec![NodeState { node: self.url(), connected, ..NodeState::default() }]
    }

    fn ping(&self) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(async { self.ask(&["ping"]).await.map(drop) })
    }

    fn self_test(&self) -> BoxFuture<'_, Result<(), StoreFailure>> {
        Box::pin(async { self.call(vec!["ping".to_owned()]).await.map(drop) })
    }

    fn instance_id(&self) -> &str {
        &self.instance
    }

    fn count_instances<'a>(&'a self, record: Option<&'a [u8]>) -> BoxFuture<'a, Result<u64, Error>> {
        Box::pin(async move {
            let (name, record) = (format!("instance{}", self.instance), hex(record.unwrap_or_default()));
            self.ask(&["put", &name, "10000000", "any", &record]).await?;
            Ok(self.ask(&["list", "instance"]).await?.len() as u64 / 2)
        })
    }

    fn instance_records(&self) -> BoxFuture<'_, Result<Vec<InstanceRecord>, Error>> {
        Box::pin(async {
            let found = self.ask(&["list", "instance"]).await?;
            let published = found.chunks(2).filter(|one| one[1] != ".");
            Ok(published.map(|one| InstanceRecord { id: one[0].clone(), record: bytes(&one[1]) }).collect())
        })
    }

    fn claim<'a>(&'a self, what: &'a [u8], duration: Duration) -> BoxFuture<'a, Result<bool, Error>> {
        Box::pin(async move {
            let (name, lasts_us) = (format!("claim{}", hex(what)), micros(duration).to_string());
            Ok(self.ask(&["put", &name, &lasts_us, ".", "claimed"]).await? == ["1"])
        })
    }

    fn control_document(
        &self,
        known: Option<ControlDocumentId>,
    ) -> BoxFuture<'_, Result<Option<ControlDocument>, Error>> {
        Box::pin(async move {
            let document = match self.ask(&["list", "document"]).await?.as_slice() {
                [id, text] => {
                    let [id, text] = [id, text].map(|hex| String::from_utf8(bytes(hex)).unwrap());
                    ControlDocument::new(ControlDocumentId::from_text(&id).unwrap(), text)
                }
                _ => ControlDocument::default(),
            };
            Ok(Some(document).filter(|document| Some(document.id) != known))
        })
    }

    fn replace_control_document<'a>(
        &'a self,
        found: ControlDocumentId,
        document: &'a ControlDocument,
    ) -> BoxFuture<'a, Result<bool, Error>> {
        Box::pin(async move {
            if !document.id.is_writable() {
                return Err(Error::store(format!("control document: invalid id `{}`", document.id)));
            }
            let [found, id, text] = [found.to_string(), document.id.to_string(), document.text.clone()]
                .map(|text| hex(text.as_bytes()));
            Ok(self.ask(&["put", "document", "1000000000000000", &found, &id, &text]).await? == ["1"])
        })
    }
}
