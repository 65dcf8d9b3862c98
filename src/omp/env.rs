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
    #[must_use]
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// The word or sign found there, cut after 40 bytes; empty at the end of the text.
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
mod tests {
    use super::super::traits::{
        Access, AtomicScope, Fallback, Partition, SyncHint, TargetAccess, value as raw_value,
    };
    use super::*;

    /// The traits that `list` asks for.
    fn traits(list: &str) -> Traits {
        let text = format!("omp_default_mem_space:{list}");
        match parse(text.as_bytes()) {
            Ok(EnvAllocator::Create { space: MemSpace::Default, traits }) => traits,
            other => panic!("{text}: {other:?}"),
        }
    }

    /// The error of `text`, checked for what holds for every error.
    fn error(text: &[u8]) -> EnvError {
        let e = parse(text).expect_err(&text.escape_ascii().to_string());
        let rest = &text[e.offset()..];
        assert!(rest.starts_with(e.found()), "{e}");
        assert_eq!(e.found().is_empty(), rest.is_empty(), "{e}");
        let line = e.to_string();
        assert!(line.bytes().all(|b| (b' '..=b'~').contains(&b)), "{line:?}");
        e
    }

    /// `text` with a `^` before the offset of its error.
    #[track_caller]
    fn refused(marked: &str, found: &str, expected: Expected) {
        let at = marked.find('^').unwrap();
        let e = error(marked.replacen('^', "", 1).as_bytes());
        assert_eq!((e.offset(), e.found(), e.expected), (at, found.as_bytes(), expected), "{marked}");
    }

    fn row(name: &str) -> &'static Trait {
        lookup(&TRAITS, name.as_bytes()).unwrap()
    }

    #[test]
    fn every_predefined_allocator() {
        for (name, handle) in [
            ("omp_default_mem_alloc", 1),
            ("omp_large_cap_mem_alloc", 2),
            ("omp_const_mem_alloc", 3),
            ("omp_high_bw_mem_alloc", 4),
            ("omp_low_lat_mem_alloc", 5),
            ("omp_cgroup_mem_alloc", 6),
            ("omp_pteam_mem_alloc", 7),
            ("omp_thread_mem_alloc", 8),
            ("ompx_gnu_pinned_mem_alloc", 200),
            ("llvm_omp_target_host_mem_alloc", 100),
        ] {
            let wanted = Ok(EnvAllocator::Predefined(AllocatorHandle::from_raw(handle)));
            for text in [name.to_owned(), name.to_uppercase(), format!(" \t{name}\r\n\x0b\x0c")] {
                assert_eq!(parse(text.as_bytes()), wanted, "{text:?}");
            }
            let fallback = traits(&format!("fallback=allocator_fb,fb_data={name}")).fallback;
            assert_eq!(fallback, Fallback::Allocator(AllocatorHandle::from_raw(handle)));
        }
    }

    #[test]
    fn every_memory_space() {
        for (name, space) in [
            ("omp_default_mem_space", MemSpace::Default),
            ("omp_large_cap_mem_space", MemSpace::LargeCap),
            ("omp_const_mem_space", MemSpace::Const),
            ("omp_high_bw_mem_space", MemSpace::HighBw),
            ("omp_low_lat_mem_space", MemSpace::LowLat),
            ("omp_null_mem_space", MemSpace::Default),
        ] {
            for text in [name.to_owned(), name.to_uppercase(), format!("\t {name} ")] {
                let wanted = EnvAllocator::Create { space, traits: Traits::default() };
                assert_eq!(parse(text.as_bytes()), Ok(wanted), "{text:?}");
                let wanted =
                    EnvAllocator::Create { space, traits: Traits { pinned: true, ..Traits::default() } };
                assert_eq!(parse(format!("{text}:pinned=true").as_bytes()), Ok(wanted), "{text:?}");
            }
        }
    }

    #[test]
    fn every_word_of_every_trait() {
        let d = Traits::default();
        for (list, wanted) in [
            ("sync_hint=contended", Traits { sync_hint: SyncHint::Contended, ..d }),
            ("sync_hint=uncontended", Traits { sync_hint: SyncHint::Uncontended, ..d }),
            ("sync_hint=serialized", Traits { sync_hint: SyncHint::Serialized, ..d }),
            ("sync_hint=sequential", Traits { sync_hint: SyncHint::Serialized, ..d }),
            ("sync_hint=private", Traits { sync_hint: SyncHint::Private, ..d }),
            ("alignment=1", d),
            ("alignment=4096", Traits { alignment: Alignment::new(4096).unwrap(), ..d }),
            ("alignment=1073741824", Traits { alignment: Alignment::new(1 << 30).unwrap(), ..d }),
            ("access=all", Traits { access: Access::All, ..d }),
            ("access=memspace", Traits { access: Access::MemSpace, ..d }),
            ("access=device", Traits { access: Access::Device, ..d }),
            ("access=cgroup", Traits { access: Access::CGroup, ..d }),
            ("access=pteam", Traits { access: Access::PTeam, ..d }),
            ("access=thread", Traits { access: Access::Thread, ..d }),
            ("pool_size=1", Traits { pool_size: Some(1), ..d }),
            ("pool_size=0001048576", Traits { pool_size: Some(1 << 20), ..d }),
            ("fallback=default_mem_fb", Traits { fallback: Fallback::DefaultMem, ..d }),
            ("fallback=null_fb", Traits { fallback: Fallback::Null, ..d }),
            ("fallback=abort_fb", Traits { fallback: Fallback::Abort, ..d }),
            ("fb_data=omp_const_mem_alloc", d),
            (
                "fb_data=omp_const_mem_alloc,fallback=allocator_fb",
                Traits { fallback: Fallback::Allocator(AllocatorHandle::CONST_MEM), ..d },
            ),
            ("pinned=true", Traits { pinned: true, ..d }),
            ("pinned=false", d),
            ("partition=environment", Traits { partition: Partition::Environment, ..d }),
            ("partition=nearest", Traits { partition: Partition::Nearest, ..d }),
            ("partition=blocked", Traits { partition: Partition::Blocked, ..d }),
            ("partition=interleaved", Traits { partition: Partition::Interleaved, ..d }),
            ("pin_device=0", Traits { pin_device: Some(0), ..d }),
            ("pin_device=-1", Traits { pin_device: Some(-1), ..d }),
            ("preferred_device=0", Traits { preferred_device: Some(0), ..d }),
            ("preferred_device=-1", Traits { preferred_device: Some(-1), ..d }),
            ("target_access=single", Traits { target_access: TargetAccess::Single, ..d }),
            ("target_access=multiple", Traits { target_access: TargetAccess::Multiple, ..d }),
            ("atomic_scope=all", Traits { atomic_scope: AtomicScope::All, ..d }),
            ("atomic_scope=device", Traits { atomic_scope: AtomicScope::Device, ..d }),
            ("part_size=65536", Traits { part_size: Some(65536), ..d }),
            ("partitioner_arg=0", d),
            ("partitioner_arg=7", Traits { partitioner_arg: 7, ..d }),
        ] {
            assert_eq!(traits(list), wanted, "{list}");
            assert_eq!(traits(&list.to_uppercase()), wanted, "{list}");
            let spaced = list.replace('=', " \t=\n ").replace(',', "\r, \x0b");
            assert_eq!(traits(&format!(" {spaced}\x0c ")), wanted, "{list}");
        }
    }

    #[test]
    fn the_tables_hold_each_trait_once_and_default_for_each() {
        let keys: Vec<i32> = TRAITS.iter().map(|t| t.key).collect();
        let without = [key::DEVICE_ACCESS, key::PARTITIONER];
        assert_eq!(keys, (1..=16).filter(|k| !without.contains(k)).collect::<Vec<_>>());
        let all: Vec<String> = TRAITS.iter().map(|t| format!("{}=Default", t.name)).collect();
        assert_eq!(traits(&all.join(",")), Traits::default());
        // The longest word fits into an error.
        assert!(ALLOCATORS.iter().all(|(name, _)| name.len() <= EXCERPT));
    }

    #[test]
    fn examples_of_the_specification() {
        let wanted = EnvAllocator::Create {
            space: MemSpace::LargeCap,
            traits: Traits { alignment: Alignment::new(16).unwrap(), pinned: true, ..Traits::default() },
        };
        assert_eq!(parse(b"omp_large_cap_mem_space:alignment=16,pinned=true"), Ok(wanted));
        let wanted = EnvAllocator::Create {
            space: MemSpace::HighBw,
            traits: Traits {
                pool_size: Some(1_048_576),
                fallback: Fallback::Allocator(AllocatorHandle::LOW_LAT_MEM),
                ..Traits::default()
            },
        };
        let text =
            "omp_high_bw_mem_space:pool_size=1048576,fallback=allocator_fb,fb_data=omp_low_lat_mem_alloc";
        assert_eq!(parse(text.as_bytes()), Ok(wanted));
        assert_eq!(parse(text.to_uppercase().as_bytes()), Ok(wanted));
        let wide: String =
            text.chars().map(|c| if "=:,".contains(c) { format!(" {c}\t") } else { c.into() }).collect();
        assert_eq!(parse(wide.as_bytes()), Ok(wanted));
    }

    #[test]
    fn the_last_of_two_values_counts() {
        assert!(!traits("pinned=true,alignment=64,pinned=false").pinned);
        assert_eq!(traits("pool_size=1,pool_size=default").pool_size, None);
        assert_eq!(traits("fallback=allocator_fb,fallback=null_fb").fallback, Fallback::Null);
        let many = vec!["pinned=true"; 300].join(",");
        assert!(traits(&many).pinned);
    }

    #[test]
    fn a_wrong_first_word() {
        refused("^", "", Expected::AllocatorOrSpace);
        refused("  ^", "", Expected::AllocatorOrSpace);
        refused("^omp_default_mem", "omp_default_mem", Expected::AllocatorOrSpace);
        refused("^omp_null_allocator", "omp_null_allocator", Expected::AllocatorOrSpace);
        refused(" ^1", "1", Expected::AllocatorOrSpace);
        refused("^:pinned=true", ":", Expected::AllocatorOrSpace);
        refused("^default", "default", Expected::AllocatorOrSpace);
        refused("^omp_default_mem_allocs", "omp_default_mem_allocs", Expected::AllocatorOrSpace);
    }

    #[test]
    fn something_after_the_end() {
        refused("omp_default_mem_alloc ^x", "x", Expected::End);
        refused("omp_default_mem_alloc^:pinned=true", ":", Expected::End);
        refused("omp_default_mem_alloc^,", ",", Expected::End);
        refused("omp_default_mem_space ^pinned=true", "pinned", Expected::ColonOrEnd);
        refused("omp_default_mem_space^=1", "=", Expected::ColonOrEnd);
        refused("omp_default_mem_space:pinned=true ^x", "x", Expected::CommaOrEnd);
        refused("omp_default_mem_space:pinned=true^:", ":", Expected::CommaOrEnd);
        refused("omp_default_mem_space:pinned=true^=", "=", Expected::CommaOrEnd);
        refused("omp_default_mem_space:alignment=1 ^6", "6", Expected::CommaOrEnd);
    }

    #[test]
    fn a_list_with_something_missing_or_unknown() {
        let equals = Expected::Equals(row("pinned"));
        let pinned = Expected::Value(row("pinned"));
        refused("omp_default_mem_space:^", "", Expected::Trait);
        refused("omp_default_mem_space: ^", "", Expected::Trait);
        refused("omp_default_mem_space:^:", ":", Expected::Trait);
        refused("omp_default_mem_space:^,pinned=true", ",", Expected::Trait);
        refused("omp_default_mem_space:pinned=true,^", "", Expected::Trait);
        refused("omp_default_mem_space:pinned=true , ^", "", Expected::Trait);
        refused("omp_default_mem_space:pinned=true,^,pinned=true", ",", Expected::Trait);
        refused("omp_default_mem_space:^pined=true", "pined", Expected::Trait);
        refused("omp_default_mem_space:^device_access=all", "device_access", Expected::Trait);
        refused("omp_default_mem_space:pinned^", "", equals);
        refused("omp_default_mem_space:pinned ^true", "true", equals);
        refused("omp_default_mem_space:pinned^:true", ":", equals);
        refused("omp_default_mem_space:pinned=^", "", pinned);
        refused("omp_default_mem_space:pinned= ^,alignment=8", ",", pinned);
        refused("omp_default_mem_space:pinned=^=true", "=", pinned);
        refused("omp_default_mem_space:pinned=^1", "1", pinned);
        refused("omp_default_mem_space:pinned=^yes,alignment=3", "yes", pinned);
    }

    #[test]
    fn a_value_of_another_trait() {
        for t in &TRAITS {
            for word in
                ["bogus", "omp_default_mem_space", "omp_null_allocator", "-2", "+1", "- 1", "0x10", "1k"]
            {
                let found = if word == "- 1" { "-" } else { word };
                refused(
                    &format!("omp_default_mem_space:pinned=true,{}=^{word}", t.name),
                    found,
                    Expected::Value(t),
                );
            }
            // The words of all other traits, unless this one has the same.
            for other in &TRAITS {
                let Domain::Words(words) = &other.domain else {
                    continue;
                };
                for (word, _) in *words {
                    if !matches!(&t.domain, Domain::Words(own) if own.iter().any(|(w, _)| w == word)) {
                        refused(
                            &format!("omp_default_mem_space:{}=^{word}", t.name),
                            word,
                            Expected::Value(t),
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn numbers_out_of_range_are_refused_not_wrapped() {
        let max = usize::MAX.to_string(); // Also the raw value of "default".
        let over = (usize::MAX as u128 + 1).to_string();
        let wrapped = (usize::MAX as u128 + 1 + 4096).to_string();
        let long = "9".repeat(EXCERPT);
        for name in
            ["alignment", "pool_size", "part_size", "partitioner_arg", "pin_device", "preferred_device"]
        {
            for n in [&max, &over, &wrapped, &long] {
                refused(&format!("omp_low_lat_mem_space:{name}=^{n}"), n, Expected::Value(row(name)));
            }
        }
        let most = usize::MAX - 1;
        assert_eq!(traits(&format!("pool_size={most}")).pool_size, Some(most));
        assert_eq!(traits(&format!("part_size={most}")).part_size, Some(most));
        assert_eq!(traits(&format!("partitioner_arg={most}")).partitioner_arg, most);
        assert_eq!(raw_value::DEFAULT, usize::MAX);
    }

    #[test]
    fn what_the_validation_refuses_is_pointed_at() {
        for (name, value) in [
            ("alignment", "0"),
            ("alignment", "24"),
            ("alignment", "2147483648"),
            ("pool_size", "0"),
            ("part_size", "0"),
            ("pin_device", "1"),
            ("pin_device", "4294967295"), // The raw form of -1.
            ("preferred_device", "2"),
            ("preferred_device", "2147483647"),
        ] {
            let expected = Expected::Value(row(name));
            refused(&format!("omp_const_mem_space:{name}=^{value}"), value, expected);
            // Errors come in the order of the text, also when a later value would have counted.
            refused(&format!("omp_const_mem_space:{name}= ^{value} , {name}=default , x"), value, expected);
        }
    }

    #[test]
    fn an_allocator_fallback_needs_its_allocator() {
        refused("omp_default_mem_space:fallback=^allocator_fb", "allocator_fb", Expected::FbData);
        refused(
            "omp_default_mem_space:fallback=null_fb,fallback=^ALLOCATOR_FB,pinned=true,fb_data=default",
            "ALLOCATOR_FB",
            Expected::FbData,
        );
        // What cut the list short is the error, not what is missing because of it.
        refused("omp_default_mem_space:fallback=allocator_fb,^x", "x", Expected::Trait);
        refused("omp_default_mem_space:fallback=allocator_fb^:", ":", Expected::CommaOrEnd);
    }

    #[test]
    fn a_partitioner_cannot_be_named() {
        refused("omp_default_mem_space:^partitioner=1", "partitioner", Expected::NoPartitioner);
        refused("omp_default_mem_space:partition=^Partitioner", "Partitioner", Expected::NoPartitioner);
        let line = error(b"omp_default_mem_space:partition=partitioner").to_string();
        assert_eq!(
            line,
            "byte 32: found \"partitioner\", expected another word, as an environment variable cannot name a \
             memory partitioner"
        );
    }

    #[test]
    fn the_length_is_capped() {
        let mut text = b"omp_default_mem_alloc".to_vec();
        text.resize(MAX_LEN, b' ');
        assert!(parse(&text).is_ok());
        text.push(b' ');
        let e = error(&text);
        assert_eq!((e.offset(), e.found(), e.expected), (MAX_LEN, &b" "[..], Expected::Shorter));
        assert_eq!(error(&vec![0xff; 1 << 20]).offset(), MAX_LEN);
    }

    #[test]
    fn errors_read_well() {
        let line = |text: &[u8]| error(text).to_string();
        assert_eq!(
            line(b"omp_default_mem_space:pinned = yes"),
            "byte 31: found \"yes\", expected a value of pinned (true, false or default)"
        );
        assert_eq!(
            line(b"omp_default_mem_space:alignment=3"),
            "byte 32: found \"3\", expected a value of alignment (a power of two up to 1073741824 or default)"
        );
        assert_eq!(
            line(b"omp_default_mem_space:pinned"),
            "byte 28: found the end, expected \"=\" after pinned"
        );
        assert_eq!(
            line(b"omp_default_mem_space:\xc3\xa4\n=1"),
            "byte 22: found \"\\xc3\\xa4\", expected a trait (sync_hint, alignment, access, pool_size, fallback, \
             fb_data, pinned, partition, pin_device, preferred_device, target_access, atomic_scope, part_size, \
             partitioner_arg)"
        );
        assert_eq!(
            line(b"omp_default_mem_alloc:"),
            "byte 21: found \":\", expected the end, as a predefined allocator takes no traits"
        );
        let long = line(&[b'x'; EXCERPT + 1]);
        assert!(long.starts_with(&format!("byte 0: found \"{}\"..., expected a pre", "x".repeat(EXCERPT))));
        // The texts of all other errors.
        assert!(line(b"").contains("(omp_default_mem_alloc, ") && line(b"").contains("omp_null_mem_space)"));
        for (text, end) in [
            ("omp_default_mem_space x", "expected \":\" and traits, or the end"),
            ("omp_default_mem_space:pinned=true;", "(true, false or default)"),
            ("omp_default_mem_space:pinned=true x", "expected \",\" and a trait, or the end"),
            ("omp_default_mem_space:pin_device=7", "(-1 or 0, the host or default)"),
            ("omp_default_mem_space:fallback=allocator_fb", "fb_data with a predefined allocator beside it"),
            ("omp_default_mem_space:fb_data=x", "llvm_omp_target_host_mem_alloc or default)"),
        ] {
            assert!(line(text.as_bytes()).ends_with(end), "{}", line(text.as_bytes()));
        }
        let e: Box<dyn core::error::Error> = Box::new(error(b"x"));
        assert!(e.source().is_none());
    }

    #[test]
    fn no_bytes_make_it_panic() {
        let words = TRAITS.iter().flat_map(|t| {
            let own: &[Word<usize>] = if let Domain::Words(words) = t.domain { words } else { &[] };
            own.iter().map(|(w, _)| *w).chain([t.name])
        });
        let words: Vec<&str> = words
            .chain(SPACES.iter().map(|(w, _)| *w))
            .chain(ALLOCATORS.iter().map(|(w, _)| *w))
            .chain([
                ":",
                "=",
                ",",
                " ",
                "\t",
                "-1",
                "0",
                "64",
                "18446744073709551616",
                "default",
                PARTITIONER,
            ])
            .collect();
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut random = move |below: usize| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 16) as usize % below
        };
        let (mut good, mut bad) = (0, 0);
        let mut check = |text: &[u8]| {
            if parse(text).is_ok() {
                good += 1;
            } else {
                error(text); // Its checks.
                bad += 1;
            }
        };
        for _ in 0..if cfg!(miri) { 100 } else { 20_000 } {
            let mut text = Vec::new();
            match random(3) {
                // Any bytes.
                0 => text.extend((0..random(64)).map(|_| random(256) as u8)),
                // Any tokens.
                1 => (0..random(12)).for_each(|_| text.extend(words[random(words.len())].bytes())),
                // The right form, and at times a byte of it changed or its end cut off.
                _ => {
                    text.extend(SPACES[random(SPACES.len())].0.bytes());
                    for i in 0..random(4) {
                        let t = &TRAITS[random(TRAITS.len())];
                        let value = match t.domain {
                            Domain::Words(words) => words[random(words.len())].0,
                            Domain::Allocator => ALLOCATORS[random(ALLOCATORS.len())].0,
                            _ => ["1", "0", "default", "4096"][random(4)],
                        };
                        text.extend(format!("{}{}={value}", if i == 0 { ':' } else { ',' }, t.name).bytes());
                    }
                    let at = random(text.len());
                    match random(3) {
                        0 => text[at] = random(256) as u8,
                        1 => text.truncate(at),
                        _ => {}
                    }
                }
            }
            check(&text);
        }
        assert!(good > 0 && bad > 0, "{good} good, {bad} bad");
    }
}
