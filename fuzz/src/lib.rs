//! What the fuzz targets share: values drawn from the fuzzer's bytes.
//!
//! Decoding by hand, front to back, with zeros behind the end: every input is a program, a mutation of one byte
//! changes one value, and a seed can be written down byte by byte.

/// The bytes that are left.
#[derive(Debug, Clone, Copy)]
pub struct Bytes<'a>(pub &'a [u8]);

impl<'a> Bytes<'a> {
    /// Whether nothing is left.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The next byte; 0 behind the end.
    pub fn byte(&mut self) -> u8 {
        match self.0.split_first() {
            Some((&b, rest)) => {
                self.0 = rest;
                b
            }
            None => 0,
        }
    }

    /// The next byte, below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        usize::from(self.byte()) % n.max(1)
    }

    /// Whether the next byte is odd.
    pub fn flag(&mut self) -> bool {
        self.byte() & 1 == 1
    }

    /// The next two bytes, little-endian.
    pub fn half(&mut self) -> usize {
        usize::from(self.byte()) | usize::from(self.byte()) << 8
    }

    /// The next eight bytes, little-endian.
    pub fn word(&mut self) -> usize {
        (0..8).fold(0, |w, i| w | usize::from(self.byte()) << (8 * i))
    }

    /// One of `items`, which are not none.
    pub fn pick<T: Copy>(&mut self, items: &[T]) -> T {
        items[self.below(items.len())]
    }

    /// Everything up to the next byte `end`, which is taken too, or all that is left.
    pub fn until(&mut self, end: u8) -> &'a [u8] {
        let n = self.0.iter().position(|&b| b == end).unwrap_or(self.0.len());
        let (head, rest) = self.0.split_at(n);
        self.0 = rest.get(1..).unwrap_or_default();
        head
    }

    /// A size in bytes: mostly small, often at a page boundary, sometimes of some MiB, sometimes absurd.
    pub fn size(&mut self) -> usize {
        const PAGE: usize = 4096;
        const MIB: usize = 1 << 20;
        // No more than these can be had on any machine: they are beyond the address space.
        const ABSURD: [usize; 8] = [
            1 << 47,
            (1 << 47) + 1,
            1 << 62,
            isize::MAX as usize - PAGE,
            isize::MAX as usize,
            isize::MAX as usize + 1,
            usize::MAX - PAGE,
            usize::MAX,
        ];
        match self.byte() % 16 {
            0 => 0,
            1..=4 => usize::from(self.byte()),
            5..=7 => self.half() % 20_000,
            8..=9 => self.around(16 * PAGE, PAGE),
            10..=12 => self.around(64 * PAGE, PAGE),
            13 => self.around(4 * MIB, MIB),
            14 => self.around(5 * MIB, PAGE),
            _ => self.pick(&ABSURD),
        }
    }

    /// A multiple of `step` up to `limit`, two bytes more or less.
    fn around(&mut self, limit: usize, step: usize) -> usize {
        let n = (1 + self.half() % (limit / step)) * step;
        match self.byte() % 8 {
            d @ 0..=1 => n - 1 - usize::from(d),
            d @ 2..=3 => n + usize::from(d) - 1,
            _ => n,
        }
    }

    /// An alignment in bytes: mostly a power of two, now and then none.
    pub fn align(&mut self) -> usize {
        match self.byte() {
            n @ 0..=30 => 1 << n,
            31 => 3,
            32 => 1 << 31,
            33 => usize::MAX,
            34 => 48,
            35 => 0,
            n => 1 << (n % 14),
        }
    }
}
