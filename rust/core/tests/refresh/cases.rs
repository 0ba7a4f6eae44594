//! The handed cases: each its name, a scenario and its expected rows.

use qsa_group_core::contract::{Field, Mode};
use serde_json::Value;

use crate::scenario::{ALL_FIELDS, Live, Scenario, Step, Values};

pub fn load() -> Vec<(String, Scenario, Vec<Vec<Values>>)> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data");
    let read = |name| std::fs::read_to_string(format!("{folder}/{name}")).unwrap();
    let parse = |name| serde_json::from_str::<Vec<Value>>(&read(name)).unwrap();
    let load = |case: &Value| {
        let name = case["name"].as_str().unwrap().to_string();
        (name, scenario(case), case["expected"].as_array().unwrap().iter().map(expected).collect())
    };
    ["replay_cases.json", "ring_cases.json"].into_iter().flat_map(parse).map(|case| load(&case)).collect()
}

fn int(value: &Value) -> i64 {
    value.as_i64().unwrap()
}

fn ints(value: &Value) -> Vec<i64> {
    value.as_array().unwrap().iter().map(int).collect()
}

fn scenario(case: &Value) -> Scenario {
    let mode = Mode::parse(case["mode"].as_str().unwrap(), case["draft_token_num"].as_i64()).unwrap();
    let rows = int(if mode == Mode::Decode { &case["bs"] } else { &case["num_rows"] }) as usize;
    let steps = case["steps"].as_i64().unwrap_or(1);
    Scenario {
        num_padding: int(&case["num_padding"]),
        ratio: int(&case["compress_ratio"]),
        page_size: int(&case["page_size"]),
        ring_size: case["ring_size"].as_i64().unwrap_or(int(&case["compress_ratio"])),
        table: table(case),
        max_pages: int(&case["max_pages"]) as usize,
        steps: (1..=steps).map(|offset| Step { offset, present: ALL_FIELDS, rows }).collect(),
        extend_lens: case.get("extend_lens").map(|lens| Live::new(&ints(lens))),
        ..Scenario::new(mode, rows, &ints(&case["seq_lens"]), &ints(&case["req_pool_indices"]))
    }
}

fn table(case: &Value) -> Vec<Vec<i32>> {
    let (page_size, width) = (int(&case["page_size"]), int(&case["table_width"]));
    let row = |slot: i64| {
        // A slot that is not listed is all zero, and so is a last page that the width cuts off.
        let pages = case["pages"].get(slot.to_string()).map(ints).unwrap_or_default();
        let entry = |token: i64| match pages.get((token / page_size) as usize) {
            Some(page) => (page * page_size + token % page_size) as i32,
            None => 0,
        };
        (0..width).map(entry).collect()
    };
    (0..int(&case["num_slots"])).map(row).collect()
}

fn expected(step: &Value) -> Vec<Values> {
    let scalars: Vec<Vec<i64>> = Field::ALL[..7].iter().map(|field| ints(&step[field.name()])).collect();
    (0..scalars[0].len())
        .map(|row| Values {
            scalars: std::array::from_fn(|field| scalars[field][row]),
            ring: ints(&step["ring_group_locs"][row]),
            live_pages: ints(&step["page_table_live"][row]),
        })
        .collect()
}
