//! What the worker processes do.

use crate::{counting, kills, owners, stops};

pub(crate) fn run(role: &str) {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match (role, arguments.as_slice()) {
        ("race", [path, owner]) => owners::work_race(path, owner),
        ("make", [path, resource]) => owners::work_make(path, resource),
        ("take", [path, owner]) => owners::work_take(path, owner),
        ("own", [path]) => owners::work_own(path),
        ("hold", [path]) => owners::work_hold(path),
        ("count", [path, name, commits]) => {
            counting::work(path, name, commits.parse().unwrap());
        }
        ("pair", [path, slot]) => kills::work(path, slot),
        ("write", [path]) => stops::work(path, None),
        ("write", [path, stop_at]) => stops::work(path, Some(stop_at)),
        _ => panic!("no role `{role}` with {arguments:?}"),
    }
}

/// The lines on standard input; at its end the test is over.
pub(crate) fn told() -> impl Iterator<Item = String> {
    std::io::stdin().lines().map_while(Result::ok)
}
