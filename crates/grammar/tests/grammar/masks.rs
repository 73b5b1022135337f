//! The mask says exactly what may follow, and forks go their own way.

use crate::{BYTES, DATE, END, VOCABULARY, compile, pick, regex, schema, text};
use spectrain_core::constraint::{Constraint, ConstraintError, ConstraintState, mask_after};
use spectrain_core::rng::{Key, Purpose};
use spectrain_core::tree::Tree;
use spectrain_grammar::{Grammar, Spec};

/// Whether `text` begins some date, by its characters alone.
fn begins_a_date(text: &[u8]) -> bool {
    let fits = |(i, &c): (usize, &u8)| match i {
        0 => c == b'1' || c == b'2',
        1 => c == if text[0] == b'1' { b'9' } else { b'0' },
        4 | 7 => c == b'-',
        _ => c.is_ascii_digit(),
    };
    text.len() <= 10 && text.iter().enumerate().all(fits)
}

fn key(seed: u64, step: usize) -> Key {
    Key::new(seed, 1, step as u64, Purpose::Noise)
}

#[test]
fn it_allows_what_can_still_match_and_nothing_else() {
    let grammar = regex(DATE);
    for seed in 0..20 {
        let mut state = grammar.start();
        let mut ids = Vec::new();
        loop {
            let mask = state.mask().unwrap();
            assert_eq!(mask.len(), VOCABULARY);
            let so_far = text(&ids);
            for token in 0..VOCABULARY as u32 {
                let with = [so_far.as_slice(), BYTES.text(token)].concat();
                let expected = match END.contains(&token) {
                    true => so_far.len() == 10,
                    false => !BYTES.text(token).is_empty() && begins_a_date(&with),
                };
                assert_eq!(mask[token as usize], expected, "token {token} after {ids:?}");
            }
            let token = pick(state.as_ref(), key(seed, ids.len()));
            state.advance(token).unwrap();
            if END.contains(&token) {
                break;
            }
            ids.push(token);
        }
    }
}

#[test]
fn behind_the_end_only_end_tokens_follow() {
    let grammar = regex("a+");
    let a = (0..).find(|&id| BYTES.text(id) == b"a").unwrap();
    let mut state = grammar.start();
    assert_eq!(END.map(|end| state.mask().unwrap()[end as usize]), [false, false], "nothing is written yet");
    state.advance(a).unwrap();
    let mask = state.mask().unwrap();
    assert!(mask[a as usize] && END.iter().all(|&end| mask[end as usize]), "it may end or go on");
    state.advance(END[1]).unwrap();
    let only_ends: Vec<bool> = (0..VOCABULARY as u32).map(|token| END.contains(&token)).collect();
    assert_eq!(state.mask().unwrap(), only_ends);
    state.advance(END[0]).unwrap();
    assert_eq!(state.mask().unwrap(), only_ends);
    assert_eq!(state.advance(a), Err(ConstraintError::Refused(a)));
    assert_eq!(state.mask(), Err(ConstraintError::Refused(a)), "and then nothing");
}

#[test]
fn an_end_before_its_time_is_refused() {
    let letter = (0..).find(|&id| BYTES.text(id) == b"a").unwrap();
    // An end token, a special token, text that does not match, an id of no token.
    for token in [END[0], 1, letter, 900_000] {
        let mut state = regex(DATE).start();
        assert_eq!(state.advance(token), Err(ConstraintError::Refused(token)));
    }
}

/// Walks of random drafts behind random texts: a fork leaves no trace in what it was forked from.
fn forks_are_isolated(grammar: &Grammar) {
    for seed in 0..10 {
        let mut state = grammar.start();
        for step in 0..12 {
            let before = state.mask().unwrap();
            let mut forks = [state.fork(), state.fork()];
            for turn in 0..6 {
                let fork = &mut forks[turn % 2];
                let token = pick(fork.as_ref(), key(100 * seed + turn as u64, step));
                fork.advance(token).unwrap();
                let deeper = fork.fork();
                let same = fork.mask().unwrap();
                let mut broken = deeper.fork();
                assert!(broken.advance(1).is_err());
                assert_eq!((deeper.mask().unwrap(), fork.mask().unwrap()), (same.clone(), same));
            }
            assert_eq!(state.mask().unwrap(), before);
            let token = pick(state.as_ref(), key(seed, step));
            state.advance(token).unwrap();
        }
    }
}

#[test]
fn forks_of_a_regex_are_isolated() {
    forks_are_isolated(&regex("([a-z ]{3,9}[.!?] ?)+"));
}

#[test]
fn forks_of_a_schema_are_isolated() {
    forks_are_isolated(&compile(Spec::JsonSchema(schema())));
}

#[test]
fn every_node_of_a_tree_has_the_mask_of_its_path() {
    let grammar = regex("[a-z]{1,8}(, [a-z]{1,8})*");
    let mut nodes: Vec<(usize, u32)> = Vec::new();
    let mut tree = Tree::new(7, 0, &nodes).unwrap();
    let mut state = grammar.start();
    (0..3).for_each(|step| state.advance(pick(state.as_ref(), key(3, step))).unwrap());
    let mut dead = 0;
    for step in 0..40 {
        let parent = key(4, step).below_at(1, tree.len());
        let allowed = pick_behind(state.as_ref(), &path(&tree, parent), step);
        // Every fifth node may not stand where it does.
        let token = if step % 5 == 4 { 1 } else { allowed.unwrap_or(1) };
        if tree.child(parent, token).is_some() {
            continue;
        }
        nodes.push((parent, token));
        tree = Tree::new(7, 0, &nodes).unwrap();
    }
    let committed = state.mask().unwrap();
    // Forked node by node or all the way from the committed text, a place is the same; behind a dead node all are dead.
    let mut forks: Vec<Option<Box<dyn ConstraintState>>> = Vec::new();
    for node in 0..tree.len() {
        let fork = match tree.parent(node) {
            None => Some(state.fork()),
            Some(parent) => forks[parent].as_ref().map(|parent| parent.fork()).and_then(|mut fork| {
                fork.advance(tree.token(node)).ok()?;
                Some(fork)
            }),
        };
        match mask_after(state.as_ref(), &path(&tree, node)) {
            Ok(expected) => assert_eq!(fork.as_ref().unwrap().mask(), Ok(expected), "node {node}"),
            Err(_) => {
                dead += 1;
                assert!(fork.is_none(), "node {node}");
            }
        }
        forks.push(fork);
    }
    assert!(dead >= 5 && dead < tree.len() / 2, "{dead} of {}", tree.len());
    assert_eq!(state.mask().unwrap(), committed, "nothing of the draft is left");
}

fn pick_behind(state: &dyn ConstraintState, path: &[u32], step: usize) -> Option<u32> {
    let mut fork = state.fork();
    path.iter().try_for_each(|&token| fork.advance(token)).ok()?;
    Some(pick(fork.as_ref(), key(5, step)))
}

/// Tokens from the root's first child to `node`.
fn path(tree: &Tree, node: usize) -> Vec<u32> {
    let mut up: Vec<u32> =
        std::iter::successors(Some(node), |&node| tree.parent(node)).map(|n| tree.token(n)).collect();
    up.pop();
    up.reverse();
    up
}
