use super::*;

fn export(text: &str) -> Export {
    text.parse().expect("an export")
}

fn sys(uid: u32, gid: u32, groups: &[u32]) -> Credentials {
    Credentials::Sys { uid, gid, groups: groups.to_vec() }
}

fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

#[test]
fn options_are_parsed_as_in_exports() {
    let all = export("/srv/:ro,all_squash,anonuid=5,anongid=6,insecure,192.0.2.0/24,2001:db8::1");
    assert_eq!((all.path.as_str(), all.read_only, all.secure), ("/srv", true, false));
    assert_eq!((all.squash, all.anon_uid, all.anon_gid), (Squash::All, 5, 6));
    assert_eq!(all.clients(), ["192.0.2.0/24", "2001:db8::1/128"]);
    assert_eq!(export("/"), Export::default());
    let as_shown = "/srv:ro,all_squash,anonuid=5,anongid=6,insecure,192.0.2.0/24,2001:db8::1/128";
    assert_eq!(all.to_string(), as_shown);
    for text in ["/", "/a b:no_root_squash", as_shown] {
        assert_eq!(export(text).to_string(), text, "the shown text is the parsed one");
    }
    assert!(!export("/:ro,rw").read_only, "the last one wins");
}

#[test]
fn each_option_has_the_effect_described_in_exports_and_no_other() {
    let default = || Export::default();
    let network = |text| vec![Network::parse(text).expect("a network")];
    let cases = [
        ("ro", Export { read_only: true, ..default() }),
        ("rw", default()),
        ("root_squash", default()),
        ("no_root_squash", Export { squash: Squash::None, ..default() }),
        ("all_squash", Export { squash: Squash::All, ..default() }),
        ("anonuid=5", Export { anon_uid: 5, ..default() }),
        ("anongid=6", Export { anon_gid: 6, ..default() }),
        ("secure", default()),
        ("insecure", Export { secure: false, ..default() }),
        ("192.0.2.7", Export { networks: network("192.0.2.7/32"), ..default() }),
        ("192.0.2.0/24", Export { networks: network("192.0.2.0/24"), ..default() }),
        ("2001:db8::/32", Export { networks: network("2001:db8::/32"), ..default() }),
    ];
    for (option, expected) in cases {
        assert_eq!(export(&format!("/:{option}")), expected, "{option}");
    }
}

#[test]
fn invalid_options_are_named() {
    let error = |text: &str| text.parse::<Export>().expect_err("bad").to_string();
    assert!(error("srv").contains("'srv'"));
    assert!(error("/:sync,rw").contains("'sync'"));
    assert!(error("/:192.0.2.0/33").contains("'192.0.2.0/33'"));
    assert!(error("/:anonuid=x").contains("'anonuid=x'"));
    assert!(error("/:anongid=4294967295").contains("'anongid=4294967295'"));
}

#[test]
fn only_addresses_that_are_named_may_call() {
    let local = export("/");
    assert!(local.admits(ip("127.0.0.1"), 1000) && local.admits(ip("::1"), 1000));
    assert!(local.admits(ip("::ffff:127.0.0.1"), 1000), "as a socket for both families shows it");
    assert!(!local.admits(ip("192.0.2.1"), 1000));
    assert!(!local.admits(ip("127.0.0.1"), 1024), "any user can have that port");
    let net = export("/:192.0.2.0/25,insecure");
    assert!(net.admits(ip("192.0.2.127"), 5000));
    assert!(!net.admits(ip("192.0.2.128"), 5000));
    assert!(!net.admits(ip("127.0.0.1"), 5000), "this machine is not named");
    assert!(export("/:0.0.0.0/0").admits(ip("203.0.113.9"), 1));
}

#[test]
fn root_is_squashed_by_default() {
    let anonymous = User::new(NOBODY, NOBODY, vec![]);
    let default = export("/");
    assert_eq!(default.act_as(&sys(0, 0, &[0, 4])), anonymous);
    assert_eq!(default.act_as(&Credentials::None), anonymous);
    let member = User::new(7, NOBODY, vec![NOBODY, 4]);
    assert_eq!(default.act_as(&sys(7, 0, &[0, 4])), member, "nor root's group by another user");
    let root = User::new(0, 0, vec![4]);
    assert_eq!(export("/:no_root_squash").act_as(&sys(0, 0, &[4])), root);
    let five = User::new(5, 6, vec![]);
    assert_eq!(export("/:all_squash,anonuid=5,anongid=6").act_as(&sys(7, 7, &[7])), five);
}

#[test]
fn a_caller_without_a_user_or_a_group_is_squashed() {
    let anonymous = User::new(NOBODY, NOBODY, vec![]);
    for squash in ["root_squash", "no_root_squash"] {
        let export = export(&format!("/:{squash}"));
        assert_eq!(export.act_as(&sys(u32::MAX, 5, &[])), anonymous, "{squash}");
        assert_eq!(export.act_as(&sys(5, u32::MAX, &[])), anonymous, "{squash}");
    }
}
