//! Sums by number in one value: many accounts of a day, or the quarter-hours of a day, in a row.
//!
//! Guarantees: what is unpacked is what was packed, in the order of the numbers.
//!
//! A row of SQLite costs a question many calls, an entry of a packed value none.
//!
//! ```text
//!   entry = number - number before it, flows, requests, up, down, uncertain up, uncertain down
//!           each in groups of seven bits, the lowest first, with the eighth set in all but the last (LEB128)
//! ```

use super::sums::Sums;

/// Packs sums, whose numbers ascend from 0 on; `None` if a sum is negative, or a number is not in order.
pub(crate) fn pack<'a>(sums: impl IntoIterator<Item = (i64, &'a Sums)>) -> Option<Vec<u8>> {
    let (mut packed, mut before) = (Vec::new(), 0);
    for (number, sums) in sums {
        put(&mut packed, number.checked_sub(before)?)?;
        let Sums { flows, requests, up, down, uncertain_up, uncertain_down } = *sums;
        for sum in [flows, requests, up, down, uncertain_up, uncertain_down] {
            put(&mut packed, sum)?;
        }
        before = number;
    }
    Some(packed)
}

/// Calls `each` with what was packed; returns whether all of `packed` could be read.
pub(crate) fn unpack(mut packed: &[u8], mut each: impl FnMut(i64, &Sums)) -> bool {
    let mut number = 0_i64;
    while !packed.is_empty() {
        let mut values = [0; 7];
        for value in &mut values {
            let Some(taken) = take(&mut packed) else { return false };
            *value = taken;
        }
        let [more, flows, requests, up, down, uncertain_up, uncertain_down] = values;
        number = number.saturating_add(more);
        each(number, &Sums { flows, requests, up, down, uncertain_up, uncertain_down });
    }
    true
}

fn put(packed: &mut Vec<u8>, value: i64) -> Option<()> {
    let mut rest = u64::try_from(value).ok()?;
    while rest >= 0x80 {
        packed.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    packed.push(rest as u8);
    Some(())
}

fn take(packed: &mut &[u8]) -> Option<i64> {
    let mut value = 0_u64;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = packed.split_first()?;
        *packed = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return i64::try_from(value).ok();
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unpacked_sums_are_those_that_were_packed() {
        let sums = |flows, up, uncertain_down| Sums { flows, up, uncertain_down, ..Sums::default() };
        let all = [
            (0, sums(0, 0, 0)),
            (1, sums(127, 128, i64::MAX)),
            (700_000, sums(1, i64::MAX, 16_384)),
            (i64::MAX, sums(2, 3, 4)),
        ];
        let packed = pack(all.iter().map(|(number, sums)| (*number, sums))).unwrap();
        let mut found = Vec::new();
        assert!(unpack(&packed, |number, sums| found.push((number, *sums))));
        assert_eq!(found, all);
        assert!(!unpack(&packed[..packed.len() - 1], |_, _| ()), "a cut value is no value");
        assert_eq!(pack([(7, &sums(-1, 0, 0))]), None);
        assert_eq!(pack([(7, &sums(1, 0, 0)), (6, &sums(1, 0, 0))]), None);
    }
}
