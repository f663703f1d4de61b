//! The demo.

use serde_json::json;

use super::support::World;

#[test]
fn the_demo_ends_well_and_tells_the_story_in_order() {
    let world = World::new();
    let told = world.words("--json demo").expect(0).json_lines();
    let events: Vec<&str> = told
        .iter()
        .map(|step| step["event"].as_str().unwrap())
        .collect();
    let story = [
        "store",
        "acquired",
        "written",
        "stopped",
        "expired",
        "acquired",
        "written",
        "continued",
        "stale_write",
        "state",
    ];
    assert_eq!(events, story);
    assert_eq!(told[1]["token"], 1);
    assert_eq!(told[5]["token"], 2);
    let refused = &told[8];
    assert_eq!(refused["kind"], "lease_lost");
    assert_eq!(refused["superseded_by"], 2);
    assert_eq!(told[9]["fields"], json!({ "paid_by": "bert" }));
    // It used a store of its own, and removed it.
    assert!(!world.store().exists());
    assert!(!std::path::Path::new(told[0]["path"].as_str().unwrap()).exists());
}

#[test]
fn the_demo_speaks_to_people_too() {
    let world = World::new();
    let told = world.words("demo").expect(0);
    for word in [
        "SIGSTOP",
        "expires",
        "takes over",
        "SIGCONT",
        "refused",
        "untouched",
    ] {
        assert!(told.out.contains(word), "{word}: {told:#?}");
    }
}
