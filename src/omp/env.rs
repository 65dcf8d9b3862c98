//! `OMP_ALLOCATOR`: the text of the environment variable to the allocator it asks for.
//!
//! The variable sets the first value of the `def-allocator-var` ICV. OpenMP 5.0 has only the name of a predefined
//! allocator in it; since 5.1 it may also be a memory space, with or without traits, which asks for a
//! new allocator:
//!
//! ```text
//!   allocator := predef-allocator | predef-mem-space [ ":" trait "=" value { "," trait "=" value } ]
//!   value     := a word of the trait | integer (numeric traits) | predef-allocator (fb_data)
//!
//!   omp_high_bw_mem_space : pool_size = 1048576 , fallback = allocator_fb , fb_data = omp_low_lat_mem_alloc
//!   └─ lookup in SPACES     └──── TRAITS row ─┘   each pair, as soon as it is read, goes to Traits::from_raw
//! ```
//!
//! Words are compared without regard to case, white space may stand around every token.
//!
//! How: the trait list is an iterator of raw `(key, value)` pairs that [`Traits::from_raw`] pulls. So there is
//! one validation for C callers and for the environment, a refused pair is still at hand to be pointed
//! at, errors come in the order of the text, and no list is ever stored: a trait given twice needs no extra
//! care either, the last one counts as everywhere.
//!
//! Why so careful for one line of text: it is read while a process-wide allocator starts, before `main`, where a
//! heap allocation would ask the allocator that is being set up and a panic could not be reported. So this
//! module allocates nothing (an error carries a fixed excerpt of the text), cannot panic whatever the bytes are
//! (no slicing by computed bounds, no unchecked arithmetic) and takes time linear in the length, which is
//! capped.

use core::fmt;

use super::error::TraitError;
use super::handle::AllocatorHandle;
use super::space::MemSpace;
use super::traits::{Alignment, Traits, key, value};

/// Longest text read, in bytes. All traits in full spelling, wide spacing included, stay far below it.
const MAX_LEN: usize = 4096;

/// Bytes of the text an error keeps. The longest word of the grammar has 30.
const EXCERPT: usize = 40;

/// What `OMP_ALLOCATOR` asks for (environment variable `OMP_ALLOCATOR` of OpenMP 5.0, extended in 5.1).
///
/// ```
/// use pinned_alloc::omp::env::{EnvAllocator, parse};
///
/// let Ok(EnvAllocator::Create { traits, .. }) = parse(b"omp_default_mem_space:pinned=true,alignment=64") else {
///     panic!()
/// };
/// assert!(traits.pinned);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EnvAllocator {
    /// A predefined allocator: the whole syntax of 5.0.
    Predefined(AllocatorHandle),
    /// A new allocator (5.1). If it cannot be created the default is `omp_default_mem_alloc`.
    Create {
        /// Where its memory comes from; `omp_null_mem_space` (6.0) is already the default space here.
        space: MemSpace,
        /// Its traits, those not named in the text at their defaults.
        traits: Traits,
    },
}

/// Why a text is not an `OMP_ALLOCATOR` value: where, what was found there and what may stand there.
///
/// [`Display`](fmt::Display) says it in one ASCII line (bytes that are not printable are escaped) and
/// allocates nothing, so it is fit for a diagnostic at start-up:
///
/// ```text
///   byte 31: found "yes", expected a value of pinned (true, false or default)
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EnvError {
    offset: usize,
    excerpt: [u8; EXCERPT],
    len: usize, // Bytes of the token; only the first EXCERPT of them are kept.
    expected: Expected,
}

impl EnvError {
    fn new(found: Token<'_>, expected: Expected) -> Self {
        let mut excerpt = [0; EXCERPT];
        for (kept, byte) in excerpt.iter_mut().zip(found.text) {
            *kept = *byte;
        }
        Self { offset: found.offset, excerpt, len: found.text.len(), expected }
    }

    /// Byte offset of the offending word or sign in the text; the length of the text if something is missing at
    /// its end.
    ///
    /// ```
    /// let e = pinned_alloc::omp::env::parse(b"omp_no_such_alloc").unwrap_err();
    /// assert_eq!(e.offset(), 0);
    /// ```
    #[must_use]
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// The word or sign found there, cut after 40 bytes; empty at the end of the text.
    ///
    /// ```
    /// let e = pinned_alloc::omp::env::parse(b" nonsense ").unwrap_err();
    /// assert_eq!(e.found(), b"nonsense");
    /// ```
    #[must_use]
    pub fn found(&self) -> &[u8] {
        self.excerpt.get(..self.len).unwrap_or(&self.excerpt)
    }
}

impl fmt::Display for EnvError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "byte {}: found ", self.offset)?;
        if self.len == 0 {
            f.write_str("the end")?;
        } else {
            let cut = if self.len > EXCERPT { "..." } else { "" };
            write!(f, "\"{}\"{cut}", self.found().escape_ascii())?;
        }
        write!(f, ", expected {}", self.expected)
    }
}

impl core::error::Error for EnvError {}

/// What may stand where an error was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Expected {
    /// The first word.
    AllocatorOrSpace,
    /// After the name of an allocator.
    End,
    /// After the name of a memory space.
    ColonOrEnd,
    Trait,
    /// After the name of this trait.
    Equals(&'static Trait),
    /// A value this trait can have.
    Value(&'static Trait),
    CommaOrEnd,
    /// `fallback=allocator_fb` was found, and no `fb_data` with an allocator in the whole list.
    FbData,
    /// A word that needs a memory partitioner was found: those exist as handles of a running program only.
    NoPartitioner,
    /// The text is longer than is read.
    Shorter,
}

impl fmt::Display for Expected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AllocatorOrSpace => {
                write!(
                    f,
                    "a predefined allocator ({}) or memory space ({})",
                    List(&ALLOCATORS),
                    List(&SPACES)
                )
            }
            Self::End => f.write_str("the end, as a predefined allocator takes no traits"),
            Self::ColonOrEnd => f.write_str("\":\" and traits, or the end"),
            Self::Trait => write!(f, "a trait ({})", List(&TRAITS)),
            Self::Equals(t) => write!(f, "\"=\" after {}", t.name),
            Self::Value(t) => write!(f, "a value of {} ({} or default)", t.name, t.domain),
            Self::CommaOrEnd => f.write_str("\",\" and a trait, or the end"),
            Self::FbData => f.write_str("fb_data with a predefined allocator beside it"),
            Self::NoPartitioner => {
                f.write_str("another word, as an environment variable cannot name a memory partitioner")
            }
            Self::Shorter => write!(f, "the end, as {MAX_LEN} bytes are the most that is read"),
        }
    }
}

/// A word and what it stands for.
type Word<T> = (&'static str, T);

/// Something with a name, to be listed in an error.
trait Named {
    fn name(&self) -> &'static str;
}

impl<T> Named for Word<T> {
    fn name(&self) -> &'static str {
        self.0
    }
}

impl Named for Trait {
    fn name(&self) -> &'static str {
        self.name
    }
}

/// Writes the names with commas between them.
struct List<'a, T>(&'a [T]);

impl<T: Named> fmt::Display for List<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, item) in self.0.iter().enumerate() {
            f.write_str(if i == 0 { "" } else { ", " })?;
            f.write_str(item.name())?;
        }
        Ok(())
    }
}

fn lookup<'a, T: Named>(table: &'a [T], word: &[u8]) -> Option<&'a T> {
    table.iter().find(|item| is(word, item.name()))
}

/// Words of the grammar are compared without regard to case.
fn is(word: &[u8], name: &str) -> bool {
    word.eq_ignore_ascii_case(name.as_bytes())
}

/// Predefined allocators. The null allocator is none: it stands for the default that is being set here.
static ALLOCATORS: [Word<AllocatorHandle>; 10] = [
    ("omp_default_mem_alloc", AllocatorHandle::DEFAULT_MEM),
    ("omp_large_cap_mem_alloc", AllocatorHandle::LARGE_CAP_MEM),
    ("omp_const_mem_alloc", AllocatorHandle::CONST_MEM),
    ("omp_high_bw_mem_alloc", AllocatorHandle::HIGH_BW_MEM),
    ("omp_low_lat_mem_alloc", AllocatorHandle::LOW_LAT_MEM),
    ("omp_cgroup_mem_alloc", AllocatorHandle::CGROUP_MEM),
    ("omp_pteam_mem_alloc", AllocatorHandle::PTEAM_MEM),
    ("omp_thread_mem_alloc", AllocatorHandle::THREAD_MEM),
    ("ompx_gnu_pinned_mem_alloc", AllocatorHandle::GNU_PINNED_MEM), // libgomp 15.
    ("llvm_omp_target_host_mem_alloc", AllocatorHandle::from_raw(100)), // LLVM.
];

/// Predefined memory spaces.
static SPACES: [Word<MemSpace>; 6] = [
    ("omp_default_mem_space", MemSpace::Default),
    ("omp_large_cap_mem_space", MemSpace::LargeCap),
    ("omp_const_mem_space", MemSpace::Const),
    ("omp_high_bw_mem_space", MemSpace::HighBw),
    ("omp_low_lat_mem_space", MemSpace::LowLat),
    ("omp_null_mem_space", MemSpace::Default), // 6.0: `omp_init_allocator` treats it as the default space.
];

/// One trait: its name in the text, its key and what it can be.
#[derive(Debug, PartialEq, Eq)]
struct Trait {
    name: &'static str,
    key: i32,
    domain: Domain,
}

/// The values of a trait, apart from `default`, which all traits have.
#[derive(Debug, PartialEq, Eq)]
enum Domain {
    Words(&'static [Word<usize>]),
    PowerOfTwo,
    Positive,
    NonNegative,
    Device,
    Allocator,
}

/// The traits of 5.0 (first eight) and 6.0; all but `partitioner`, which has no spelling here.
static TRAITS: [Trait; 14] = [
    Trait {
        name: "sync_hint",
        key: key::SYNC_HINT,
        domain: Domain::Words(&[
            ("contended", value::CONTENDED),
            ("uncontended", value::UNCONTENDED),
            ("serialized", value::SERIALIZED),
            ("sequential", value::SERIALIZED), // Name of 5.0, deprecated in 5.1.
            ("private", value::PRIVATE),
        ]),
    },
    Trait { name: "alignment", key: key::ALIGNMENT, domain: Domain::PowerOfTwo },
    Trait {
        name: "access",
        key: key::ACCESS,
        domain: Domain::Words(&[
            ("all", value::ALL),
            ("memspace", value::MEMSPACE),
            ("device", value::DEVICE),
            ("cgroup", value::CGROUP),
            ("pteam", value::PTEAM),
            ("thread", value::THREAD),
        ]),
    },
    Trait { name: "pool_size", key: key::POOL_SIZE, domain: Domain::Positive },
    Trait {
        name: "fallback",
        key: key::FALLBACK,
        domain: Domain::Words(&[
            ("default_mem_fb", value::DEFAULT_MEM_FB),
            ("null_fb", value::NULL_FB),
            ("abort_fb", value::ABORT_FB),
            ("allocator_fb", value::ALLOCATOR_FB),
        ]),
    },
    Trait { name: "fb_data", key: key::FB_DATA, domain: Domain::Allocator },
    Trait {
        name: "pinned",
        key: key::PINNED,
        domain: Domain::Words(&[("true", value::TRUE), ("false", value::FALSE)]),
    },
    Trait {
        name: "partition",
        key: key::PARTITION,
        domain: Domain::Words(&[
            ("environment", value::ENVIRONMENT),
            ("nearest", value::NEAREST),
            ("blocked", value::BLOCKED),
            ("interleaved", value::INTERLEAVED),
        ]),
    },
    Trait { name: "pin_device", key: key::PIN_DEVICE, domain: Domain::Device },
    Trait { name: "preferred_device", key: key::PREFERRED_DEVICE, domain: Domain::Device },
    Trait {
        name: "target_access",
        key: key::TARGET_ACCESS,
        domain: Domain::Words(&[("single", value::SINGLE), ("multiple", value::MULTIPLE)]),
    },
    Trait {
        name: "atomic_scope",
        key: key::ATOMIC_SCOPE,
        domain: Domain::Words(&[("all", value::ALL), ("device", value::DEVICE)]),
    },
    Trait { name: "part_size", key: key::PART_SIZE, domain: Domain::Positive },
    Trait { name: "partitioner_arg", key: key::PARTITIONER_ARG, domain: Domain::NonNegative },
];

/// The one trait, and the value of `partition`, that the environment cannot express.
const PARTITIONER: &str = "partitioner";

impl Domain {
    /// The raw value of `word`; `None` if it has none here. What is a number of the right form but out of the
    /// range of its trait is left to [`Traits::from_raw`].
    fn value(&self, word: &[u8]) -> Option<usize> {
        if is(word, "default") {
            return Some(value::DEFAULT);
        }
        match self {
            Self::Words(words) => lookup(words, word).map(|(_, v)| *v),
            Self::PowerOfTwo | Self::Positive | Self::NonNegative => number(word),
            // As a C `int` widened without its sign: the full-width -1 would be `omp_atv_default`.
            Self::Device if word == b"-1" => Some(u32::MAX as usize),
            Self::Device => number(word).filter(|n| i32::try_from(*n).is_ok()),
            Self::Allocator => lookup(&ALLOCATORS, word).map(|(_, handle)| handle.raw()),
        }
    }
}

impl fmt::Display for Domain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Words(words) => List(words).fmt(f),
            Self::PowerOfTwo => write!(f, "a power of two up to {}", Alignment::MAX),
            Self::Positive => write!(f, "an integer from 1 to {MAX_NUMBER}"),
            Self::NonNegative => write!(f, "an integer from 0 to {MAX_NUMBER}"),
            Self::Device => f.write_str("-1 or 0, the host"),
            Self::Allocator => List(&ALLOCATORS).fmt(f),
        }
    }
}

/// The largest number that is not taken for `omp_atv_default`.
const MAX_NUMBER: usize = value::DEFAULT - 1;

/// A decimal number, digits only; `None` also if it is above [`MAX_NUMBER`].
fn number(word: &[u8]) -> Option<usize> {
    let digit = |byte: &u8| byte.is_ascii_digit().then(|| usize::from(byte - b'0'));
    let first = digit(word.first()?)?;
    let n = word.iter().skip(1).try_fold(first, |n, b| n.checked_mul(10)?.checked_add(digit(b)?))?;
    (n <= MAX_NUMBER).then_some(n)
}

/// A word, a sign (`:`, `=` or `,`) or, empty, the end of the text.
#[derive(Clone, Copy)]
struct Token<'t> {
    offset: usize,
    text: &'t [u8],
}

/// Cuts the text into tokens: words are whatever is neither white space nor a sign.
struct Lexer<'t> {
    rest: &'t [u8],
    offset: usize, // Of `rest` in the whole text.
}

impl<'t> Lexer<'t> {
    fn next(&mut self) -> Token<'t> {
        self.take(self.rest.iter().take_while(|b| is_space(**b)).count());
        match self.rest.first() {
            Some(b) if is_sign(*b) => self.take(1),
            _ => self.take(self.rest.iter().take_while(|b| !is_space(**b) && !is_sign(**b)).count()),
        }
    }

    fn take(&mut self, len: usize) -> Token<'t> {
        let (text, rest) = self.rest.split_at_checked(len).unwrap_or((self.rest, &[]));
        let token = Token { offset: self.offset, text };
        self.rest = rest;
        self.offset += text.len();
        token
    }
}

fn is_sign(byte: u8) -> bool {
    matches!(byte, b':' | b'=' | b',')
}

/// What `isspace` of C says in the C locale.
fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | 0x0b | 0x0c | b'\r')
}

/// The trait list as raw pairs; ends at the end of the text or at the first error, which it keeps.
struct Pairs<'t> {
    lexer: Lexer<'t>,
    begun: bool,
    error: Option<EnvError>,
    last: [Option<Token<'t>>; TRAITS.len()], // The last value of each trait, to point at if it is refused.
}

impl Pairs<'_> {
    /// The next pair, `None` at the end of the text.
    fn pair(&mut self) -> Result<Option<(i32, usize)>, EnvError> {
        if self.begun {
            let comma = self.lexer.next();
            match comma.text {
                b"" => return Ok(None),
                b"," => {}
                _ => return Err(EnvError::new(comma, Expected::CommaOrEnd)),
            }
        }
        self.begun = true;

        let name = self.lexer.next();
        let Some((row, last)) = TRAITS.iter().zip(&mut self.last).find(|(row, _)| is(name.text, row.name))
        else {
            let expected = if is(name.text, PARTITIONER) { Expected::NoPartitioner } else { Expected::Trait };
            return Err(EnvError::new(name, expected));
        };
        let equals = self.lexer.next();
        if equals.text != b"=" {
            return Err(EnvError::new(equals, Expected::Equals(row)));
        }
        let word = self.lexer.next();
        if row.key == key::PARTITION && is(word.text, PARTITIONER) {
            return Err(EnvError::new(word, Expected::NoPartitioner));
        }
        let raw = row.domain.value(word.text).ok_or(EnvError::new(word, Expected::Value(row)))?;
        *last = Some(word);
        Ok(Some((row.key, raw)))
    }

    /// Says at the text what [`Traits::from_raw`] has against it.
    fn refused(&self, error: TraitError) -> EnvError {
        let key = match error {
            TraitError::Key { key } | TraitError::Value { key, .. } => key,
            TraitError::MissingFbData => key::FALLBACK,
            TraitError::MissingPartitioner => key::PARTITION,
        };
        let row = TRAITS.iter().zip(&self.last).find(|(row, _)| row.key == key);
        match (error, row) {
            (TraitError::MissingFbData, Some((_, Some(word)))) => EnvError::new(*word, Expected::FbData),
            (_, Some((row, Some(word)))) => EnvError::new(*word, Expected::Value(row)),
            // A key that was not in the list: `from_raw` has no reason to name one.
            _ => EnvError::new(Token { offset: self.lexer.offset, text: b"" }, Expected::Trait),
        }
    }
}

impl Iterator for Pairs<'_> {
    type Item = (i32, usize);

    fn next(&mut self) -> Option<Self::Item> {
        if self.error.is_some() {
            return None;
        }
        match self.pair() {
            Ok(pair) => pair,
            Err(error) => {
                self.error = Some(error);
                None
            }
        }
    }
}

/// Parses the value of `OMP_ALLOCATOR` (environment variable of OpenMP 5.0; memory spaces and traits since 5.1,
/// the traits up to 6.0).
///
/// Words are case-insensitive, ASCII white space may surround every token. Numbers are decimal and non-negative,
/// except that a device may also be -1, the host. A trait given twice: the last one counts. `default` is a value
/// of every trait. Besides the allocators of the specification there are `ompx_gnu_pinned_mem_alloc` (libgomp)
/// and `llvm_omp_target_host_mem_alloc` (LLVM).
///
/// Allocates nothing and never panics.
///
/// # Errors
/// [`EnvError`] at the first byte that does not fit: an unknown word, a value its trait cannot have or
/// [`Traits::from_raw`] refuses, something missing (also after a `:` or `,` at the end), something after the end,
/// `allocator_fb` without `fb_data`, anything that needs a memory partitioner, a text above 4096 bytes.
///
/// ```
/// use pinned_alloc::AllocatorHandle;
/// use pinned_alloc::omp::env::{EnvAllocator, parse};
///
/// assert_eq!(parse(b"omp_high_bw_mem_alloc"), Ok(EnvAllocator::Predefined(AllocatorHandle::HIGH_BW_MEM)));
/// assert!(parse(b"omp_large_cap_mem_space : pool_size = 1000 , fallback = null_fb").is_ok());
/// assert!(parse(b"omp_large_cap_mem_space:").is_err());
/// ```
pub fn parse(text: &[u8]) -> Result<EnvAllocator, EnvError> {
    if let Some(rest @ [_, ..]) = text.get(MAX_LEN..) {
        return Err(EnvError::new(Token { offset: MAX_LEN, text: rest }, Expected::Shorter));
    }
    let mut lexer = Lexer { rest: text, offset: 0 };
    let name = lexer.next();
    if let Some((_, handle)) = lookup(&ALLOCATORS, name.text) {
        let end = lexer.next();
        return match end.text {
            b"" => Ok(EnvAllocator::Predefined(*handle)),
            _ => Err(EnvError::new(end, Expected::End)),
        };
    }
    let Some((_, space)) = lookup(&SPACES, name.text) else {
        return Err(EnvError::new(name, Expected::AllocatorOrSpace));
    };
    let colon = lexer.next();
    let traits = match colon.text {
        b"" => Traits::default(),
        b":" => {
            let mut pairs = Pairs { lexer, begun: false, error: None, last: [None; TRAITS.len()] };
            let traits = Traits::from_raw(&mut pairs);
            // A list cut short by an error may be refused for what is missing: the error comes first.
            if let Some(error) = pairs.error {
                return Err(error);
            }
            traits.map_err(|error| pairs.refused(error))?
        }
        _ => return Err(EnvError::new(colon, Expected::ColonOrEnd)),
    };
    Ok(EnvAllocator::Create { space: *space, traits })
}

#[cfg(test)]
mod tests;
