//! The formats once more, as plainly as can be.

use pinned_alloc::os::topology::NodeSet;

/// Bytes as characters, so that strings can be used on anything.
pub fn string(text: &[u8]) -> String {
    text.iter().map(|&b| char::from(b)).collect()
}

fn is_space(c: char) -> bool {
    c.is_ascii_whitespace()
}

/// Digits and nothing else, white space behind them.
pub fn number(text: &str) -> Option<u64> {
    let t = text.trim_end_matches(is_space);
    if t.is_empty() || !t.chars().all(|c| c.is_ascii_digit()) {
        return None;
    }
    t.parse().ok()
}

/// `  12 kB`, in bytes.
pub fn kib(text: &str) -> Option<u64> {
    number(text.trim_matches(is_space).strip_suffix("kB")?)?.checked_mul(1024)
}

/// `0-3,7`: the ranges, both ends included.
pub fn list(text: &str) -> Option<Vec<(u64, u64)>> {
    let text = text.trim_matches(is_space);
    if text.is_empty() {
        return Some(Vec::new());
    }
    let exact = |t: &str| number(t).filter(|_| !t.ends_with(is_space));
    let range = |part: &str| match part.split_once('-') {
        Some((a, b)) => exact(a).zip(exact(b)).filter(|(a, b)| a <= b),
        None => exact(part).map(|n| (n, n)),
    };
    text.split(',').map(range).collect()
}

/// The nodes below 64 of a list, and how many there are beyond, counted as often as they are named.
pub fn nodes(text: &str) -> Option<(NodeSet, u64)> {
    let ranges = list(text)?;
    let set = (0..64).filter(|&n| ranges.iter().any(|r| (r.0..=r.1).contains(&u64::from(n)))).collect();
    let beyond = |r: &(u64, u64)| (u128::from(r.1) + 1).saturating_sub(u128::from(r.0.max(64)));
    let ignored: u128 = ranges.iter().map(beyond).sum();
    Some((set, u64::try_from(ignored).unwrap_or(u64::MAX)))
}

/// One figure a column, none of them 0; those of `online` in ascending order.
pub fn distances(text: &str, online: NodeSet, columns: u64) -> Option<Vec<(u8, u8)>> {
    let words: Vec<&str> = text.split(is_space).filter(|w| !w.is_empty()).collect();
    let figures: Option<Vec<u8>> =
        words.iter().map(|w| number(w).and_then(|n| u8::try_from(n).ok()).filter(|&n| n != 0)).collect();
    let figures = figures.filter(|f| f.len() as u64 == columns)?;
    Some(online.iter().zip(figures).collect())
}

/// `MemTotal:` somewhere in the line, and a size.
pub fn mem_total(line: &str) -> Option<u64> {
    kib(line.split_once("MemTotal:")?.1)
}
