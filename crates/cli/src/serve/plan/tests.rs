//! Plans from flags and configurations, and how exports are put on servers.

use super::*;

fn flags(tables: &[&str], exports: &[&str]) -> ServeFlags {
    ServeFlags {
        table: tables.iter().map(|&text| text.to_owned()).collect(),
        export: exports.iter().map(|uri| uri.parse().unwrap()).collect(),
        ..ServeFlags::default()
    }
}

fn unix(path: &str) -> At {
    At::Endpoint(Endpoint::Unix(path.into()))
}

fn usage(plan: Result<Plan, Failure>) -> String {
    match plan.unwrap_err() {
        Failure::Usage(sentence) => sentence,
        Failure::Failed(sentence) => panic!("not usage: {sentence}"),
    }
}

#[test]
fn without_flags_it_is_the_embedded_default() {
    let plan = Plan::new(ServeFlags::default(), false).unwrap();
    assert!(plan.embedded && !plan.drain);
    assert_eq!(plan.control, Some("forebay-data/control.sock".into()));
    assert_eq!(plan.exports, [ExportPlan { device: 0, name: String::new(), at: unix("forebay-data/nbd.sock") }]);
    assert_eq!(plan.devices[0].table.rows()[0].extent.count.0, 2_097_152);
}

#[test]
fn tables_and_exports_may_be_repeated() {
    let plan = Plan::new(flags(&["0 8 error", "8 8 error"], &["nbd+unix:///a?socket=s", "nbd://127.0.0.1/b"]), false).unwrap();
    assert_eq!((plan.devices.len(), plan.devices[0].table.rows().len(), plan.embedded), (1, 2, false));
    let names: Vec<_> = plan.exports.iter().map(|export| export.name.as_str()).collect();
    assert_eq!((names, plan.control), (vec!["a", "b"], None));
}

#[test]
fn what_is_wrong_is_found_before_anything_is_opened() {
    let sentence = usage(Plan::new(flags(&["gibberish"], &["nbd+unix:///?socket=s"]), false));
    assert_eq!(sentence, "table line 1: the start \"gibberish\" is not a whole number");
    let sentence = usage(Plan::new(flags(&["0 8 error"], &[]), false));
    assert_eq!(sentence, "disk is served nowhere: add --export 'nbd+unix:///?socket=PATH'");
    let named = ServeFlags { name: Some("two words".into()), ..ServeFlags::default() };
    assert_eq!(usage(Plan::new(named, false)), "\"two words\" cannot be a device's name: use one word");
}

#[test]
fn sockets_of_the_service_manager_take_the_place_of_exports() {
    let plan = Plan::new(flags(&["0 8 error"], &[]), true).unwrap();
    assert_eq!(plan.exports, [ExportPlan { device: 0, name: "disk".into(), at: At::Inherited }]);
    let plan = Plan::new(flags(&["0 8 error"], &["nbd+unix:///?socket=s"]), true).unwrap();
    assert_eq!(plan.exports.len(), 1);
}

fn config(text: &str, flags: ServeFlags) -> Result<Plan, Failure> {
    Plan::from_config(toml::from_str(text).unwrap(), flags, false)
}

const TWO: &str = "drain = true\n[[device]]\nname = \"a\"\ntable = \"0 8 error\"\nexport = [\"nbd+unix:///a?socket=s\"]\n\
                   [[device]]\nname = \"b\"\ntable = \"0 8 error\"\nread_only = true\n";

#[test]
fn a_configuration_and_flags_add_up() {
    let plan = config(TWO, flags(&[], &["nbd+unix:///b?socket=t"])).unwrap();
    assert!(plan.drain && plan.devices[1].read_only && !plan.devices[0].read_only);
    assert_eq!(plan.exports[1], ExportPlan { device: 1, name: "b".into(), at: unix("t") });
    assert_eq!(usage(config(TWO, flags(&[], &[]))), "b is served nowhere: add --export 'nbd+unix:///?socket=PATH'");
    let sentence = usage(config(TWO, flags(&[], &["nbd+unix:///?socket=t"])));
    assert!(sentence.contains("names none of the devices a, b"), "{sentence}");
    let twice = TWO.replace("\"b\"", "\"a\"");
    assert!(usage(config(&twice, flags(&[], &[]))).starts_with("two devices are called \"a\""));
    let wrong = TWO.replace("0 8 error\"\nread", "0 error\"\nread");
    assert!(usage(config(&wrong, flags(&[], &[]))).starts_with("device b: table line 1: the length \"error\""));
}

fn export(device: usize, name: &str, socket: &str) -> ExportPlan {
    ExportPlan { device, name: name.into(), at: unix(socket) }
}

#[test]
fn what_shares_a_device_or_a_place_is_on_one_server() {
    let apart = sites(&[export(0, "", "a"), export(1, "", "b")]).unwrap();
    assert_eq!(apart.len(), 2);
    let joined = sites(&[export(0, "x", "a"), export(1, "y", "b"), export(1, "z", "a")]).unwrap();
    assert_eq!(joined.len(), 1);
    assert_eq!(joined[0].places, [unix("a"), unix("b")]);
    assert_eq!(joined[0].exports, [("x".to_owned(), 0), ("y".to_owned(), 1), ("z".to_owned(), 1)]);
    assert!(sites(&[export(0, "x", "a"), export(1, "x", "a")]).is_err());
}
