//! Size classes: multiples of 16 bytes up to 128, then eight steps a doubling (at most 12.5 % apart) to 16 KiB.
//!
//! Every class is a multiple of 16, so a block is aligned to 16 wherever its slab begins; larger alignments
//! choose a class that is a multiple of them.

/// Largest block served from slabs, in bytes.
pub(super) const MAX: usize = 16 << 10;
/// Number of classes.
pub(super) const COUNT: usize = 64;

/// The smallest class that holds `size` bytes (1 ..= MAX).
#[inline]
pub(super) fn index(size: usize) -> usize {
    let s = size.max(1) - 1;
    if s < 128 {
        s / 16
    } else {
        let e = (usize::BITS - 1 - s.leading_zeros()) as usize;
        8 + (e - 7) * 8 + ((s >> (e - 3)) & 7)
    }
}

/// Bytes of a block of class `i`.
#[inline]
pub(super) const fn bytes(i: usize) -> usize {
    if i < 8 { (i + 1) * 16 } else { (9 + (i & 7)) << ((i >> 3) + 3) }
}

/// The smallest class whose blocks have `size` bytes and are aligned to `align` in a page-aligned slab.
#[inline]
pub(super) fn find(size: usize, align: usize) -> Option<usize> {
    if size > MAX || align > 4096 {
        return None;
    }
    if align <= 16 {
        return Some(index(size));
    }
    let padded = size.next_multiple_of(align);
    if padded > MAX {
        return None;
    }
    (index(padded)..COUNT).find(|&i| bytes(i).is_multiple_of(align))
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
            let i = index(size);
            assert!(bytes(i) >= size && (i == 0 || bytes(i - 1) < size), "size {size}");
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
    }
}
