//! Which limit a descriptor has, by `explain`.

use serde_json::{Value, json};
use slidegate_testkit::TempDir;
use slidegate_testkit::service::{run, text};

use super::{LEVELS, SHADOW, WILDCARDS};

/// What `explain` says of a descriptor in one line: `5/SECOND test-domain.key1`, `unlimited`, or
/// why there is no limit.
pub(crate) fn limit_of(folder: &TempDir, args: &[&str], domain: &str, descriptor: &str) -> String {
    let limit = explained(folder, args, domain, descriptor)["limit"].take();
    match limit["outcome"].as_str().unwrap() {
        "limited" => format!(
            "{}/{} {}",
            limit["requests_per_unit"],
            limit["unit"].as_str().unwrap(),
            limit["stat_key"].as_str().unwrap()
        ),
        "unlimited" => "unlimited".to_owned(),
        _ => "none".to_owned(),
    }
}

fn explained(folder: &TempDir, args: &[&str], domain: &str, descriptor: &str) -> Value {
    let args =
        [&["explain", "--json", "--envoy-config", folder.as_str(), "--domain", domain, descriptor], args]
            .concat();
    let output = run(&args);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let mut printed: Value = serde_json::from_slice(&output.stdout).unwrap();
    printed["descriptors"][0].take()
}

fn cases(folder: &TempDir, domain: &str, cases: &[(&str, &str)]) {
    for (descriptor, expected) in cases {
        assert_eq!(limit_of(folder, &[], domain, descriptor), *expected, "{descriptor}");
    }
}

/// Another limit than the file says is denial of service or none of it.
#[test]
fn levels_values_and_depth_choose_the_limit() {
    let folder = TempDir::new("envoy-levels");
    folder.file("levels.yaml", LEVELS);
    cases(
        &folder,
        "test-domain",
        &[
            ("key1=any", "none"),
            ("key1=value1", "none"),
            ("key2=value2,subkey=x", "none"),
            ("key5=value5,subkey5=subvalue", "none"),
            ("key5=value5", "15/DAY test-domain.key5_value5"),
            ("key5=value5,subkey5=subvalue5", "25/DAY test-domain.key5_value5.subkey5_subvalue5"),
            ("key1=value1,subkey1=something", "5/SECOND test-domain.key1_value1.subkey1"),
            ("key1=value1,subkey1=subvalue1", "10/SECOND test-domain.key1_value1.subkey1_subvalue1"),
            ("key2=something", "20/MINUTE test-domain.key2"),
            ("key2=value2", "30/MINUTE test-domain.key2_value2"),
            ("key2=value3", "none"),
            ("key3=any", "1/HOUR test-domain.key3"),
            ("key4=any", "1/DAY test-domain.key4"),
            ("key6=any", "unlimited"),
            ("key7=v", "70/MINUTE test-domain.key7_v"),
        ],
    );
    assert_eq!(explained(&folder, &[], "test-domain", "key4=any")["limit"]["name"], "key4_rate_limit");
    cases(&folder, "foo_domain", &[("key1=value1", "none")]);
    let own = ["--limit", "10/DAY"];
    assert_eq!(limit_of(&folder, &own, "foo_domain", "key1=value1"), "none");
    assert_eq!(
        limit_of(&folder, &own, "test-domain", "key1=value1,subkey1=something"),
        "10/DAY test-domain.key1_value1.subkey1_something"
    );
}

/// Who tries a limit in shadow must not deny anyone, and who does not must.
#[test]
fn shadow_mode_is_of_the_limit_that_has_it() {
    let folder = TempDir::new("envoy-shadow");
    folder.file("shadow.yaml", SHADOW);
    for (descriptor, expected, is_shadow) in [
        ("key1=value1,subkey1=subvalue1", "10/SECOND shadow-domain.key1_value1.subkey1_subvalue1", true),
        ("key1=value1,subkey1=something", "5/SECOND shadow-domain.key1_value1.subkey1", false),
        ("key2=something", "20/MINUTE shadow-domain.key2", true),
        ("key2=value2", "30/MINUTE shadow-domain.key2_value2", false),
        ("key2=value3", "none", false),
    ] {
        assert_eq!(limit_of(&folder, &[], "shadow-domain", descriptor), expected);
        let notes = explained(&folder, &[], "shadow-domain", descriptor)["limit"]["notes"].take();
        assert_eq!(notes == json!(["shadow: reports, but never denies"]), is_shadow, "{descriptor}: {notes}");
    }
}

/// A pattern that fits too much limits strangers, one that fits too little limits nobody.
#[test]
fn wildcards_fit_what_they_should_and_nothing_else() {
    let folder = TempDir::new("envoy-wildcards");
    folder.file("wildcards.yaml", WILDCARDS);
    let foo = "20/MINUTE test-domain.wild_foo*";
    let middle = "20/MINUTE test-domain.midWild_bar*b";
    let several = "10/MINUTE test-domain.multiWild_foo*bar*baz";
    cases(
        &folder,
        "test-domain",
        &[
            ("wild=foo1", foo),
            ("wild=foo2", foo),
            ("wild=bar", "none"),
            ("noWild=foo", "20/MINUTE test-domain.noWild_foo"),
            ("noWild=foo1", "none"),
            ("noVal=anything", "20/MINUTE test-domain.noVal"),
            ("midWild=barab", middle),
            ("midWild=bar123b", middle),
            ("midWild=barb", middle),
            ("midWild=bara", "none"),
            ("midWild=xbarb", "none"),
            ("multiWild=foo123bar456baz", several),
            ("multiWild=foobarbaz", several),
            ("multiWild=foo123baz", "none"),
            ("multiWild=bar456baz", "none"),
            ("nestedWild=val1,wild=goo2", "20/MINUTE test-domain.nestedWild_val1.wild_goo*"),
        ],
    );
    let key = |descriptor| explained(&folder, &[], "test-domain", descriptor)["limit"]["key"].take();
    assert_eq!([key("wild=foo1"), key("wild=foo2")], ["test-domain~wild=foo1", "test-domain~wild=foo2"]);
    let shared = "test-domain~shared=files*~method=GET";
    assert_eq!([key("shared=files1,method=GET"), key("shared=files2,method=GET")], [shared, shared]);
}
