//! Names of users and sets, which come, go and change.

use super::*;

pub(super) fn renamed_user_keeps_its_usage(fixture: &mut impl UsageFixture) {
    assert_eq!(fixture.number(&users(&[("robert", &[])])).accounts, [1]);
    let of = |id, user, account, up| Flow { user, account, ..flow(id, EVENING, up, 0) };
    fixture.apply(1, &[end(of(1, "robert", 1, 1)), open(of(2, "robert", 1, 2))]);
    assert_eq!(fixture.number(&users(&[("bob", &["rob", "robert"])])).accounts, [1]);
    fixture.apply(1, &[end(of(3, "bob", 1, 4)), end(of(4, "bob", 0, 8)), end(of(2, "robert", 1, 16))]);
    let usage = fixture.usage(&[]);
    assert_rows(&usage, &all(), &[GroupBy::User], &[("bob", [4, 0, 29, 0])]);
    for name in ["bob", "robert"] {
        assert_eq!(total(&usage, &of_user(name)), [4, 0, 29, 0], "{name}");
        assert!(usage.flows(&of_user(name), 9).unwrap().iter().all(|flow| flow.user == "bob"));
        assert!(usage.has_user(name).unwrap());
    }
    assert!(usage.users().unwrap().into_iter().eq(["bob", "robert"]));
    assert!(!usage.has_user("rob").unwrap(), "it never was the user's name");
    // Another user gets the earlier name.
    assert_eq!(fixture.number(&users(&[("robert", &[]), ("bob", &[])])).accounts, [2, 1]);
    fixture.apply(1, &[end(of(5, "robert", 2, 32))]);
    let usage = fixture.usage(&[]);
    assert_rows(&usage, &all(), &[GroupBy::User], &[("robert", [1, 0, 32, 0]), ("bob", [4, 0, 29, 0])]);
    assert_eq!(total(&usage, &of_user("robert")), [1, 0, 32, 0]);
}

pub(super) fn flow_stays_with_its_account(fixture: &mut impl UsageFixture) {
    fixture.number(&users(&[("robert", &[])]));
    // Flows that began before their user had a number.
    let robert = |id, at, up| Flow { user: "robert", ..flow(id, at, up, 0) };
    fixture
        .apply(1, &[open(robert(1, EVENING, 1)), open(robert(2, EVENING, 2)), open(robert(3, EVENING, 4))]);
    fixture.number(&users(&[("bob", &["robert"])]));
    fixture.number(&users(&[("bob", &[]), ("robert", &[])]));
    fixture.apply(1, &[end(robert(1, FEBRUARY, 9)), open(robert(2, FEBRUARY, 18))]);
    let unapplied = [(1, end(robert(3, FEBRUARY, 36))), (1, end(robert(4, FEBRUARY, 64)))];
    let usage = fixture.usage(&unapplied);
    let by_user = [("robert", [1, 0, 64, 0]), ("bob", [2, 1, 63, 0])];
    assert_rows(&usage, &all(), &[GroupBy::User], &by_user);
    assert_rows(&usage, &of_host("example.com"), &[GroupBy::User], &by_user);
    assert_eq!(total(&usage, &Filter { user: Some("bob".to_owned()), ..span(FEBRUARY - 1, FEBRUARY) })[2], 7);
    assert!(usage.flows(&all(), 9).unwrap().iter().all(|flow| flow.user == "bob"));
}

pub(super) fn removed_set_keeps_its_usage(fixture: &mut impl UsageFixture) {
    let sets = |names: &[&str]| Names {
        sets: names.iter().map(|name| (*name).to_owned()).collect(),
        ..Names::default()
    };
    assert_eq!(fixture.number(&sets(&["corp", "cdn"])).sets, [1, 2]);
    let of = |id, set, rule, up| end(Flow { set, rule, ..flow(id, EVENING, up, 0) });
    fixture.apply(1, &[of(1, 1, "@corp[0] a", 1), of(2, 2, "@cdn[0] a", 4), of(3, 0, "rule", 2)]);
    fixture.number(&sets(&["lab"]));
    // Numbers that no numbering gave, of an older copy of a ledger: a rule tells the name, or not.
    fixture.apply(1, &[of(4, 7, "@edge[2] b", 8), of(5, 8, "rule", 16)]);
    let later = [of(6, 9, "@later[0] c", 32), of(7, 1, "@corp[0] a", 64), of(8, 10, "rule", 3)];
    let unapplied = later.map(|entry| (1, entry));
    let usage = fixture.usage(&unapplied);
    let expected = [
        ("corp", [2, 0, 65, 0]),
        ("later", [1, 0, 32, 0]),
        ("set 8", [1, 0, 16, 0]),
        ("edge", [1, 0, 8, 0]),
        ("cdn", [1, 0, 4, 0]),
        ("set 10", [1, 0, 3, 0]),
        ("", [1, 0, 2, 0]),
    ];
    assert_rows(&usage, &all(), &[GroupBy::Set], &expected);
    assert_rows(&usage, &of_host("example.com"), &[GroupBy::Set], &expected);
    assert_eq!([total(&usage, &of_set("cdn"))[2], total(&usage, &of_set("lab"))[2]], [4, 0]);
    assert_eq!(total(&usage, &of_set("corp"))[2], 65);
    assert_eq!(total(&usage, &of_set("later"))[2], 32);
    assert!(usage.sets().into_iter().eq(["cdn", "corp", "edge", "lab", "later"]));
}

pub(super) fn team_has_the_usage_of_its_present_and_removed_users(fixture: &mut impl UsageFixture) {
    let number = |fixture: &mut _, names: &[(&str, &[&str])], teams: &[&str]| {
        UsageFixture::number(fixture, &with_teams(users(names), teams)).accounts
    };
    let three: [(&str, &[&str]); 3] = [("ann", &[]), ("bob", &[]), ("eve", &[])];
    assert_eq!(number(fixture, &three, &["web", "web", ""]), [1, 2, 3]);
    let of = |id, user, account, at, up| Flow { user, account, ..flow(id, at, up, 0) };
    fixture.apply(1, &[end(of(1, "ann", 1, EVENING, 1)), open(of(2, "bob", 2, EVENING, 2))]);
    fixture.apply(1, &[end(of(3, "eve", 3, EVENING, 4)), end(of(4, "none", 0, EVENING, 8))]);
    let unapplied = [(1, end(of(5, "ann", 1, FEBRUARY, 16))), (1, end(of(6, "new", 7, FEBRUARY, 32)))];
    let usage = fixture.usage(&unapplied);
    for filter in [all(), of_host("example.com")] {
        assert_rows(&usage, &filter, &[GroupBy::Team], &[("", [3, 0, 44, 0]), ("web", [2, 1, 19, 0])]);
    }
    assert_eq!(total(&usage, &of_team("web")), [2, 1, 19, 0]);
    assert_eq!(usage.flows(&of_team("web"), 9).unwrap().len(), 2);
    assert!(usage.teams().into_iter().eq(["web"]));
    fixture.apply(1, &unapplied.map(|(_, entry)| entry));
    // One is removed, one is renamed, and one comes from another team: all of its usage comes with it.
    number(fixture, &[("robert", &["bob"]), ("eve", &[])], &["web", "db"]);
    let usage = fixture.usage(&[]);
    assert_eq!(total(&usage, &of_team("web")), [2, 1, 19, 0]);
    assert_eq!(total(&usage, &Filter { user: Some("robert".to_owned()), ..of_team("web") })[2], 2);
    number(fixture, &[("robert", &[]), ("eve", &[])], &["", "web"]);
    let usage = fixture.usage(&[]);
    let keys = [GroupBy::Team, GroupBy::User];
    let expected = [("", "new", 32), ("", "none", 8), ("web", "ann", 17), ("web", "eve", 4)];
    let found: Vec<(String, u64)> =
        rows(&usage, &all(), &keys).into_iter().map(|(keys, [_, _, up, _])| (keys, up)).collect();
    let mut expected: Vec<(String, u64)> =
        expected.iter().map(|(team, user, up)| (format!("{team} {user}"), *up)).collect();
    expected.insert(2, (" robert".to_owned(), 2));
    assert_eq!(found, expected);
    assert!(usage.teams().into_iter().eq(["web"]), "no account is in the other one any more");
    for none in ["db", ""] {
        assert_eq!(total(&usage, &of_team(none)), [0; 4], "{none:?}");
        assert_eq!(usage.flows(&of_team(none), 9).unwrap(), [], "{none:?}");
    }
}
