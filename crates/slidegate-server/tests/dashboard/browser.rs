//! A headless Chromium, driven over the `WebDriver` protocol, which is JSON over HTTP.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use slidegate_testkit::TempDir;
use slidegate_testkit::process::command;

/// A condition that has not come true after so many looks, 90 s or more, never will, however loaded
/// the machine is.
const MOST_LOOKS: u32 = 900;
const BETWEEN_LOOKS: Duration = Duration::from_millis(100);
/// Of one command to the browser.
const ANSWER: Duration = Duration::from_secs(120);

/// A browser with an empty profile of its own. Ends with the value.
pub(crate) struct Browser {
    session: String,
    driver: Driver,
    agent: ureq::Agent,
    // Removed after the browser that writes to it has ended.
    _profile: TempDir,
}

struct Driver {
    process: Child,
    port: u16,
}

impl Browser {
    pub(crate) fn start(test: &str) -> Self {
        let profile = TempDir::new(&format!("chromium-{test}"));
        let driver = Driver::start();
        let agent: ureq::Agent = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .timeout_global(Some(ANSWER))
            .proxy(None)
            .build()
            .into();
        let mut browser = Self { session: String::new(), driver, agent, _profile: profile };
        // Root, as whom tests run in containers, has no sandbox; shared memory is often small
        // there.
        let arguments = [
            "--headless=new",
            "--no-sandbox",
            "--disable-dev-shm-usage",
            "--disable-gpu",
            "--disable-background-networking",
            // Nothing moves while it is pressed.
            "--force-prefers-reduced-motion",
            "--window-size=1280,900",
            &format!("--user-data-dir={}", browser._profile.as_str()),
        ];
        let wanted = json!({ "capabilities": { "alwaysMatch": {
            "browserName": "chrome",
            "timeouts": { "script": ANSWER.as_millis() },
            "goog:loggingPrefs": { "browser": "ALL" },
            "goog:chromeOptions": { "args": arguments },
        } } });
        let session = browser.command("POST", "/session", &wanted);
        session["sessionId"].as_str().expect("a session has an id").clone_into(&mut browser.session);
        browser
    }

    fn command(&self, method: &str, path: &str, body: &Value) -> Value {
        self.try_command(method, path, body)
            .unwrap_or_else(|refusal| panic!("{method} {path} {body}: {refusal}"))
    }

    /// The driver's value, or its refusal as it is.
    fn try_command(&self, method: &str, path: &str, body: &Value) -> Result<Value, String> {
        let url = format!("http://127.0.0.1:{}{path}", self.driver.port);
        let answer = match method {
            "GET" => self.agent.get(&url).call(),
            "DELETE" => self.agent.delete(&url).call(),
            _ => self.agent.post(&url).header("content-type", "application/json").send(body.to_string()),
        };
        let mut answer = answer.unwrap_or_else(|error| panic!("chromedriver: {error} at {method} {path}"));
        let text = answer.body_mut().read_to_string().expect("chromedriver answers with text");
        if !answer.status().is_success() {
            return Err(text);
        }
        let mut value: Value = serde_json::from_str(&text).expect("chromedriver answers with JSON");
        Ok(value["value"].take())
    }

    fn ask(&self, method: &str, path: &str, body: &Value) -> Value {
        self.command(method, &format!("/session/{}{path}", self.session), body)
    }

    pub(crate) fn open(&self, url: &str) {
        self.ask("POST", "/url", &json!({ "url": url }));
    }

    /// The value of an expression in the page.
    pub(crate) fn value(&self, expression: &str) -> Value {
        self.ask("POST", "/execute/sync", &json!({ "script": format!("return {expression}"), "args": [] }))
    }

    /// Runs a script of several statements in the page.
    pub(crate) fn run(&self, script: &str) {
        self.ask("POST", "/execute/sync", &json!({ "script": script, "args": [] }));
    }

    /// Waits until an expression is true.
    pub(crate) fn until(&self, expression: &str) {
        self.until_so(expression, expression);
    }

    /// Waits until an expression is true, which says so in words.
    pub(crate) fn until_so(&self, what: &str, expression: &str) {
        for _ in 0..MOST_LOOKS {
            if self.value(&format!("Boolean({expression})")) == true {
                return;
            }
            std::thread::sleep(BETWEEN_LOOKS);
        }
        panic!(
            "never true: {what}: {expression}\nthe page says: {}\nand its console: {:?}",
            self.value("document.body.innerText"),
            self.console()
        );
    }

    /// Waits until the element of this selector has this text in it.
    pub(crate) fn until_text(&self, selector: &str, text: &str) {
        self.until(&format!(
            "document.querySelector({})?.innerText.includes({})",
            json!(selector),
            json!(text)
        ));
    }

    pub(crate) fn text(&self, selector: &str) -> String {
        let text = self.value(&format!("document.querySelector({}).innerText", json!(selector)));
        text.as_str().expect("elements have text").to_owned()
    }

    fn element(&self, selector: &str) -> Result<String, String> {
        self.until(&format!("document.querySelector({})", json!(selector)));
        let path = format!("/session/{}/element", self.session);
        let found =
            self.try_command("POST", &path, &json!({ "using": "css selector", "value": selector }))?;
        let (_, id) = found.as_object().and_then(|one| one.iter().next()).expect("one reference");
        Ok(id.as_str().expect("a reference is text").to_owned())
    }

    /// Presses it as a pointer would: it must be there after a while, visible, and not below
    /// something else. Rows that the page draws again between the look and the press are looked for
    /// again.
    pub(crate) fn click(&self, selector: &str) {
        let scroll = format!(
            "document.querySelector({})?.scrollIntoView({{ block: 'center', behavior: 'instant' }})",
            json!(selector)
        );
        for _ in 0..MOST_LOOKS {
            let pressed = self.element(selector).and_then(|element| {
                self.value(&scroll);
                let path = format!("/session/{}/element/{element}/click", self.session);
                self.try_command("POST", &path, &json!({}))
            });
            match pressed {
                Ok(_) => return,
                Err(refusal) if is_gone(&refusal) => {}
                Err(refusal) => panic!("{selector} cannot be pressed: {refusal}"),
            }
        }
        panic!("{selector} is drawn again whenever it is pressed");
    }

    /// Types into a field instead of what is there.
    pub(crate) fn fill(&self, selector: &str, text: &str) {
        let element = self.element(selector).unwrap_or_else(|refusal| panic!("{selector}: {refusal}"));
        self.ask("POST", &format!("/element/{element}/clear"), &json!({}));
        self.ask("POST", &format!("/element/{element}/value"), &json!({ "text": text }));
    }

    /// Presses a key wherever the focus is.
    pub(crate) fn press(&self, key: char) {
        let press = json!({ "actions": [{ "type": "key", "id": "keys", "actions": [
            { "type": "keyDown", "value": key }, { "type": "keyUp", "value": key },
        ] }] });
        self.ask("POST", "/actions", &press);
    }

    /// The names that a screen reader would say for the visible elements of this selector, each
    /// with its markup.
    pub(crate) fn names(&self, selector: &str) -> Vec<(String, String)> {
        for _ in 0..MOST_LOOKS {
            match self.names_now(selector) {
                Ok(names) => return names,
                // The page has drawn an element anew meanwhile.
                Err(refusal) => assert!(refusal.contains("stale element reference"), "{selector}: {refusal}"),
            }
        }
        panic!("{selector}: the page never stops drawing");
    }

    fn names_now(&self, selector: &str) -> Result<Vec<(String, String)>, String> {
        let found = self.ask("POST", "/elements", &json!({ "using": "css selector", "value": selector }));
        let references = found.as_array().expect("a list of references");
        let ids = references.iter().filter_map(|one| one.as_object()?.values().next()?.as_str());
        let name = |id: &str| {
            let of = |what: &str| {
                let path = format!("/session/{}/element/{id}/{what}", self.session);
                self.try_command("GET", &path, &Value::Null)
            };
            let (visible, label, html) = (of("displayed")?, of("computedlabel")?, of("property/outerHTML")?);
            let text = |value: &Value| value.as_str().unwrap_or("").to_owned();
            Ok((visible == true).then(|| (text(&label), text(&html))))
        };
        ids.filter_map(|id| name(id).transpose()).collect()
    }

    /// A screen of this width, as a telephone has it.
    pub(crate) fn narrow(&self, width: u32) {
        let metrics = json!({ "width": width, "height": 844, "deviceScaleFactor": 2, "mobile": true });
        self.devtools("Emulation.setDeviceMetricsOverride", &metrics);
    }

    /// A screen of one of [`WIDTHS`](crate::WIDTHS).
    pub(crate) fn screen(&self, (width, height): (u32, u32)) {
        if width < 700 { self.narrow(width) } else { self.size(width, height) }
    }

    /// A window of this size on a desk.
    pub(crate) fn size(&self, width: u32, height: u32) {
        let metrics = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false });
        self.devtools("Emulation.setDeviceMetricsOverride", &metrics);
    }

    pub(crate) fn prefer(&self, scheme: &str) {
        let features = json!({ "features": [{ "name": "prefers-color-scheme", "value": scheme }] });
        self.devtools("Emulation.setEmulatedMedia", &features);
    }

    /// Writes what the window shows to a file, as a PNG, and returns its size.
    pub(crate) fn screenshot(&self, file: &str) -> u64 {
        let picture = self.ask("GET", "/screenshot", &Value::Null);
        let mut decoder = Command::new("base64")
            .arg("--decode")
            .stdin(Stdio::piped())
            .stdout(File::create(file).expect("the folder is writable"))
            .spawn()
            .expect("base64 is there");
        let mut input = decoder.stdin.take().expect("its input is piped");
        input.write_all(picture.as_str().expect("a picture is text").as_bytes()).expect("it reads");
        drop(input);
        assert!(decoder.wait().expect("it ends").success());
        std::fs::metadata(file).expect("it was written").len()
    }

    fn devtools(&self, command: &str, parameters: &Value) {
        self.ask("POST", "/goog/cdp/execute", &json!({ "cmd": command, "params": parameters }));
    }

    /// What the browser had to say since the last time: errors of scripts, refused content, failed
    /// requests.
    pub(crate) fn console(&self) -> Vec<String> {
        let log = self.ask("POST", "/se/log", &json!({ "type": "browser" }));
        let lines = log.as_array().expect("a log is a list").iter();
        lines.map(|line| format!("{} {}", line["level"], line["message"])).collect()
    }

    /// The page has run without a complaint.
    pub(crate) fn expect_silence(&self) {
        assert_eq!(self.console(), [""; 0]);
    }
}

/// Whether the page took the element away between two commands.
fn is_gone(refusal: &str) -> bool {
    ["stale element reference", "no such element"].iter().any(|error| refusal.contains(error))
}

impl Drop for Browser {
    fn drop(&mut self) {
        if !self.session.is_empty() {
            let url = format!("http://127.0.0.1:{}/session/{}", self.driver.port, self.session);
            // A driver that has died took the browser with it.
            let _ = self.agent.delete(&url).call();
        }
    }
}

impl Driver {
    fn start() -> Self {
        // It listens on the same port of IPv4 and IPv6, and ends if the one that it chose for the first is taken of the other.
        (0..10).find_map(|_| Self::try_start()).expect("chromedriver says its port, once in ten starts")
    }

    fn try_start() -> Option<Self> {
        let mut process = command("chromedriver")
            .arg("--port=0")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap_or_else(|error| panic!("chromedriver: {error}; install chromium and chromium-driver"));
        let lines = BufReader::new(process.stdout.take().expect("its output is piped")).lines();
        let port = lines
            .map_while(Result::ok)
            .find_map(|line| line.rsplit_once("successfully on port ")?.1.trim_end_matches('.').parse().ok());
        if port.is_none() {
            // Its output has ended.
            let _ = process.wait();
        }
        Some(Self { process, port: port? })
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
