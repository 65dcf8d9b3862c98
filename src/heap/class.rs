//! Size classes: multiples of 16 bytes up to 1 KiB, then eight steps a doubling (at most 12.5 % apart) to 16 KiB.
//!
//! Every class is a multiple of 16, so a block is aligned to 16 wherever its slab begins; larger alignments
//! choose a class that is a multiple of them.

/// Largest block served from slabs, in bytes.
pub(super) const MAX: usize = 16 << 10;
/// Largest block of a class that is a multiple of 16 for its own sake.
const FINE: usize = 1 << 10;
const FINE_COUNT: usize = FINE / 16;
/// Number of classes.
pub(super) const COUNT: usize = FINE_COUNT + 8 * 4;

/// The smallest class that holds `size` bytes; `None` for 0 and above MAX.
#[inline(always)]
pub(super) fn index_checked(size: usize) -> Option<usize> {
    let s = size.wrapping_sub(1);
    if s < FINE {
        Some(s / 16)
    } else if s < MAX {
        let e = (usize::BITS - 1 - s.leading_zeros()) as usize;
        Some(FINE_COUNT + (e - 10) * 8 + ((s >> (e - 3)) & 7))
    } else {
        None
    }
}

/// Bytes of a block of class `i`.
#[inline]
pub(super) const fn bytes(i: usize) -> usize {
    if i < FINE_COUNT {
        (i + 1) * 16
    } else {
        let k = i - FINE_COUNT;
        (9 + (k & 7)) << ((k >> 3) + 7)
    }
}

/// The smallest class whose blocks have `size` bytes (not 0) and are aligned to `align` in a page-aligned slab.
#[inline]
pub(super) fn find(size: usize, align: usize) -> Option<usize> {
    if align <= 16 {
        return index_checked(size);
    }
    if align > 4096 {
        return None;
    }
    let first = index_checked(size.checked_next_multiple_of(align)?)?;
    (first..COUNT).find(|&i| bytes(i).is_multiple_of(align))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_tight_and_ordered() {
        assert_eq!((bytes(0), bytes(COUNT - 1)), (16, MAX));
        for i in 1..COUNT {
            assert!(bytes(i) > bytes(i - 1) && bytes(i).is_multiple_of(16));
            assert!(i < 8 || (bytes(i) - bytes(i - 1)) * 8 <= bytes(i - 1), "class {i}");
        }
        for size in 1..=MAX {
            let i = index_checked(size).unwrap();
            assert!(bytes(i) >= size && (i == 0 || bytes(i - 1) < size), "size {size}");
        }
        for size in [0, MAX + 1, usize::MAX] {
            assert_eq!(index_checked(size), None);
        }
    }

    #[test]
    fn alignment_chooses_a_multiple() {
        for shift in 0..13 {
            let align = 1 << shift;
            for size in [1, 7, 16, 17, 100, 129, 4096, 5000, 12288, 16384] {
                if let Some(i) = find(size, align) {
                    assert!(bytes(i) >= size && bytes(i).is_multiple_of(align));
                }
            }
        }
        assert_eq!(find(4096, 4096).map(bytes), Some(4096));
        assert_eq!(find(MAX + 1, 1), None);
        assert_eq!(find(1, 8192), None);
        assert_eq!(find(usize::MAX, 4096), None);
    }
}
