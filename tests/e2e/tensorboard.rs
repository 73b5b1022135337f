//! What TensorBoard would read is what was recorded: an event file reader of our own, down to the checksums.

use spectrain_train::{MetricSink, Record, TensorBoard, TracedSides};
use std::collections::BTreeMap;
use std::path::Path;

/// CRC-32C, bit by bit, masked as TFRecord files have it.
fn masked_crc(bytes: &[u8]) -> u32 {
    let step = |crc: u32, _| if crc & 1 == 1 { (crc >> 1) ^ 0x82f6_3b78 } else { crc >> 1 };
    let crc = !bytes.iter().fold(!0u32, |crc, &b| (0..8).fold(crc ^ u32::from(b), step));
    crc.rotate_right(15).wrapping_add(0xa282_ead8)
}

/// Splits `n` bytes off.
fn take<'a>(bytes: &mut &'a [u8], n: usize) -> &'a [u8] {
    let (head, tail) = bytes.split_at(n);
    *bytes = tail;
    head
}

fn varint(bytes: &mut &[u8]) -> u64 {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let byte = take(bytes, 1)[0];
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            break;
        }
    }
    value
}

/// Fields of a protobuf message: number and content (a varint's eight bytes, little-endian, or the raw bytes).
fn fields(mut bytes: &[u8]) -> Vec<(u64, Vec<u8>)> {
    let mut found = Vec::new();
    while !bytes.is_empty() {
        let key = varint(&mut bytes);
        let content = match key & 7 {
            0 => varint(&mut bytes).to_le_bytes().to_vec(),
            1 => take(&mut bytes, 8).to_vec(),
            2 => {
                let n = varint(&mut bytes) as usize;
                take(&mut bytes, n).to_vec()
            }
            5 => take(&mut bytes, 4).to_vec(),
            other => panic!("wire type {other}"),
        };
        found.push((key >> 3, content));
    }
    found
}

/// Every scalar of the only event file in `dir`: tag → (step, value).
fn scalars(dir: &Path) -> BTreeMap<String, Vec<(u64, f32)>> {
    let files: Vec<_> = std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().path()).collect();
    assert_eq!(files.len(), 1, "one event file: {files:?}");
    assert!(files[0].file_name().unwrap().to_str().unwrap().starts_with("events.out.tfevents."));
    let data = std::fs::read(&files[0]).unwrap();
    let (mut rest, mut found, mut first) = (data.as_slice(), BTreeMap::<String, Vec<_>>::new(), true);
    while !rest.is_empty() {
        let length = take(&mut rest, 8);
        let number = |bytes: &[u8]| u32::from_le_bytes(bytes.try_into().unwrap());
        assert_eq!(number(take(&mut rest, 4)), masked_crc(length));
        let event = take(&mut rest, u64::from_le_bytes(length.try_into().unwrap()) as usize);
        assert_eq!(number(take(&mut rest, 4)), masked_crc(event));
        let event = fields(event);
        let get = |number: u64| event.iter().find(|(n, _)| *n == number).map(|(_, content)| content.clone());
        if std::mem::take(&mut first) {
            assert_eq!(get(3).unwrap(), b"brain.Event:2");
            continue;
        }
        let step = get(2).map_or(0, |bytes| u64::from_le_bytes(bytes.try_into().unwrap()));
        for (_, value) in fields(&get(5).unwrap()).into_iter().filter(|(n, _)| *n == 1) {
            let value = fields(&value);
            let part = |number: u64| value.iter().find(|(n, _)| *n == number).map(|(_, content)| content.clone());
            let tag = String::from_utf8(part(1).unwrap()).unwrap();
            let simple = f32::from_le_bytes(part(2).unwrap_or_default().try_into().unwrap_or_default());
            found.entry(tag).or_default().push((step, simple));
        }
    }
    found
}

fn step_record(step: usize) -> Record {
    Record::Step {
        step,
        epoch: 0.5,
        loss: 2.5 / step as f64,
        loss_step: vec![1.5, 3.25],
        alpha_step: vec![0.5, 0.25],
        alpha_policy: Vec::new(),
        learning_rate: 1e-3,
        gradient_norm: 0.75,
        tokens_per_second: 512.0,
        memory_mib: Some(96.5),
    }
}

#[test]
fn scalars_read_back_as_recorded_and_a_resumed_run_has_no_gap() {
    let dir = tempfile::tempdir().unwrap();
    let tb = dir.path().join("tb");
    drop(TensorBoard::create(&tb, &[step_record(99)]).unwrap());
    // The resumed part: what the first one wrote after its last checkpoint (step 99) is gone.
    let mut board = TensorBoard::create(&tb, &[step_record(10)]).unwrap();
    board.record(&step_record(20)).unwrap();
    let validation = Record::Validation {
        step: 20,
        loss: 1.25,
        loss_step: vec![1.0, 2.0],
        alpha_step: vec![0.4, 0.3],
        alpha_policy: Vec::new(),
        expected_length: Some(1.5),
        over_training: true,
    };
    board.record(&validation).unwrap();
    let measured = Record::Measured {
        step: 20,
        temperature: 0.0,
        length: 4,
        tokens_per_target_call: 1.75,
        accept_prefix: vec![0.5, 0.25, 0.0, 0.0],
        accept_cond: vec![0.5, 0.5],
    };
    board.record(&measured).unwrap();
    for (served, step) in [(true, 0), (false, 20)] {
        let (text, draft) = (1.5 + step as f64, 1.25);
        let (draft_bounds, difference) = ([1.0, 2.0], [-0.5, 0.75]);
        let sides =
            TracedSides { served, temperature: 0.5, rounds: 9, text, draft, draft_bounds, difference, differ: false };
        board.record(&Record::Traced { step, sides }).unwrap();
    }
    drop(board);
    let found = scalars(&tb);
    let expect = |tag: &str, right: &[(u64, f32)]| assert_eq!(found.get(tag).map(Vec::as_slice), Some(right), "{tag}");
    expect("train/loss", &[(10, 0.25), (20, 0.125)]);
    expect("train/loss_step/1", &[(10, 3.25), (20, 3.25)]);
    expect("train/acceptance_step/0", &[(10, 0.5), (20, 0.5)]);
    expect("train/expected_length_teacher_forced", &[(10, 1.625), (20, 1.625)]);
    expect("train/learning_rate", &[(10, 1e-3), (20, 1e-3)]);
    expect("train/gradient_norm", &[(10, 0.75), (20, 0.75)]);
    expect("speed/tokens_per_second", &[(10, 512.0), (20, 512.0)]);
    expect("speed/peak_memory_mib", &[(10, 96.5), (20, 96.5)]);
    expect("validation/loss", &[(20, 1.25)]);
    expect("validation/acceptance_step/1", &[(20, 0.3)]);
    expect("validation/expected_length", &[(20, 1.5)]);
    expect("validation/over_training", &[(20, 1.0)]);
    expect("measured/T0_K4/tokens_per_target_call", &[(20, 1.75)]);
    expect("measured/T0_K4/accept_prefix/2", &[(20, 0.25)]);
    expect("measured/T0_K4/accept_cond/2", &[(20, 0.5)]);
    assert!(!found.contains_key("measured/T0_K4/accept_cond/3"));
    expect("served/T0.5/along_text", &[(0, 1.5)]);
    expect("traced/T0.5/along_text", &[(20, 21.5)]);
    expect("traced/T0.5/along_drafts", &[(20, 1.25)]);
    expect("traced/T0.5/along_drafts_low", &[(20, 1.0)]);
    expect("traced/T0.5/along_drafts_high", &[(20, 2.0)]);
    expect("traced/T0.5/difference_low", &[(20, -0.5)]);
    expect("traced/T0.5/difference_high", &[(20, 0.75)]);
}
