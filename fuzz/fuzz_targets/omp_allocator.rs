//! `OMP_ALLOCATOR`: any text, against a second parser that is written for clearness alone, and against itself:
//! an accepted text means the same in capitals, with white space around its signs, and written anew from its result.
#![no_main]

use libfuzzer_sys::fuzz_target;
use pinned_alloc::omp::env::{EnvAllocator, EnvError, parse};
use pinned_alloc::traits::{Access, AtomicScope, Fallback, Partition, SyncHint, TargetAccess};
use pinned_alloc::{AllocatorBuilder, AllocatorHandle, MemSpace, Traits, routines};

const ALLOCATORS: [(&str, usize); 10] = [
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
];

const SPACES: [(&str, MemSpace); 6] = [
    ("omp_default_mem_space", MemSpace::Default),
    ("omp_large_cap_mem_space", MemSpace::LargeCap),
    ("omp_const_mem_space", MemSpace::Const),
    ("omp_high_bw_mem_space", MemSpace::HighBw),
    ("omp_low_lat_mem_space", MemSpace::LowLat),
    ("omp_null_mem_space", MemSpace::Default),
];

/// Names of the traits, their keys, and the words they may have with the words' numbers.
type Row = (&'static str, i32, &'static [(&'static str, usize)]);
const TRAITS: [Row; 14] = [
    (
        "sync_hint",
        1,
        &[("contended", 3), ("uncontended", 4), ("serialized", 5), ("sequential", 5), ("private", 6)],
    ),
    ("alignment", 2, &[]),
    (
        "access",
        3,
        &[("all", 19), ("memspace", 22), ("device", 7), ("cgroup", 10), ("pteam", 9), ("thread", 8)],
    ),
    ("pool_size", 4, &[]),
    ("fallback", 5, &[("default_mem_fb", 11), ("null_fb", 12), ("abort_fb", 13), ("allocator_fb", 14)]),
    ("fb_data", 6, &ALLOCATORS),
    ("pinned", 7, &[("true", 1), ("false", 0)]),
    ("partition", 8, &[("environment", 15), ("nearest", 16), ("blocked", 17), ("interleaved", 18)]),
    ("pin_device", 9, &[("-1", 0xffff_ffff)]),
    ("preferred_device", 10, &[("-1", 0xffff_ffff)]),
    ("target_access", 12, &[("single", 20), ("multiple", 21)]),
    ("atomic_scope", 13, &[("all", 19), ("device", 7)]),
    ("part_size", 14, &[]),
    ("partitioner_arg", 16, &[]),
];

fn is_space(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\n' | '\x0b' | '\x0c' | '\r')
}

/// The second parser: `None` for what is no value of `OMP_ALLOCATOR`.
fn reference(text: &[u8]) -> Option<EnvAllocator> {
    if text.len() > 4096 {
        return None;
    }
    // What is not ASCII is in no word, and no sign.
    let text: String = text.iter().map(|&b| char::from(b)).collect();
    let text = text.to_ascii_lowercase();
    let of = |table: &[(&str, usize)], word: &str| table.iter().find(|r| r.0 == word).map(|r| r.1);
    let (head, list) = match text.split_once(':') {
        Some((h, l)) => (h, Some(l)),
        None => (text.as_str(), None),
    };
    let head = head.trim_matches(is_space);
    if let Some(h) = of(&ALLOCATORS, head) {
        return list.is_none().then_some(EnvAllocator::Predefined(AllocatorHandle::from_raw(h)));
    }
    let space = SPACES.iter().find(|r| r.0 == head)?.1;
    let mut pairs = Vec::new();
    for item in list.into_iter().flat_map(|l| l.split(',')) {
        let (name, word) = item.split_once('=')?;
        let word = word.trim_matches(is_space);
        let (_, key, words) = TRAITS.iter().find(|t| t.0 == name.trim_matches(is_space))?;
        let numeric = words.is_empty() || words[0].0 == "-1";
        let number = || {
            let digits = numeric && !word.is_empty() && word.bytes().all(|b| b.is_ascii_digit());
            let n = word.parse::<usize>().ok().filter(|&n| digits && n != usize::MAX);
            // A device is a C int.
            n.filter(|&n| !matches!(key, 9 | 10) || i32::try_from(n).is_ok())
        };
        let value = if word == "default" { usize::MAX } else { of(words, word).or_else(number)? };
        pairs.push((*key, value));
    }
    Traits::from_raw(pairs).ok().map(|traits| EnvAllocator::Create { space, traits })
}

/// A text for a result.
fn written(a: &EnvAllocator) -> String {
    let name_of = |raw| ALLOCATORS.iter().find(|r| r.1 == raw).expect("a predefined allocator").0;
    let (space, t) = match a {
        EnvAllocator::Predefined(h) => return name_of(h.raw()).to_owned(),
        EnvAllocator::Create { space, traits } => (space, traits),
    };
    let mut s = SPACES.iter().find(|r| r.1 == *space).expect("a predefined space").0.to_owned();
    let mut put = |name: &str, value: String| {
        s.push(if s.contains(':') { ',' } else { ':' });
        s.push_str(name);
        s.push('=');
        s.push_str(&value);
    };
    let sync = match t.sync_hint {
        SyncHint::Contended => "contended",
        SyncHint::Uncontended => "uncontended",
        SyncHint::Serialized => "serialized",
        SyncHint::Private => "private",
    };
    put("sync_hint", sync.into());
    put("alignment", t.alignment.get().to_string());
    let access = match t.access {
        Access::All => "all",
        Access::MemSpace => "memspace",
        Access::Device => "device",
        Access::CGroup => "cgroup",
        Access::PTeam => "pteam",
        Access::Thread => "thread",
    };
    put("access", access.into());
    put("pool_size", t.pool_size.map_or("default".into(), |n| n.to_string()));
    match t.fallback {
        Fallback::DefaultMem => put("fallback", "default_mem_fb".into()),
        Fallback::Null => put("fallback", "null_fb".into()),
        Fallback::Abort => put("fallback", "abort_fb".into()),
        Fallback::Allocator(h) => {
            put("fallback", "allocator_fb".into());
            put("fb_data", name_of(h.raw()).into());
        }
    }
    put("pinned", t.pinned.to_string());
    let partition = match t.partition {
        Partition::Environment => "environment",
        Partition::Nearest => "nearest",
        Partition::Blocked => "blocked",
        Partition::Interleaved => "interleaved",
        Partition::Partitioner(_) => panic!("no text names a partitioner"),
    };
    put("partition", partition.into());
    put("pin_device", t.pin_device.map_or("default".into(), |n| n.to_string()));
    put("preferred_device", t.preferred_device.map_or("default".into(), |n| n.to_string()));
    let single = t.target_access == TargetAccess::Single;
    put("target_access", if single { "single" } else { "multiple" }.into());
    put("atomic_scope", if t.atomic_scope == AtomicScope::All { "all" } else { "device" }.into());
    put("part_size", t.part_size.map_or("default".into(), |n| n.to_string()));
    put("partitioner_arg", t.partitioner_arg.to_string());
    s
}

/// What holds for every error: it points into the text, at what it says, and reads as one line.
fn check_error(text: &[u8], e: &EnvError) {
    let rest = text.get(e.offset()..).expect("an offset within the text");
    assert!(rest.starts_with(e.found()), "{e}");
    assert_eq!(e.found().is_empty(), rest.is_empty(), "{e}");
    assert!(e.found().len() <= 40);
    let line = e.to_string();
    assert!(line.bytes().all(|b| (b' '..=b'~').contains(&b)), "{line:?}");
    // A value that ends where the error is found may be one, or may lack something; never a different allocator.
    if let Ok(a) = parse(&text[..e.offset()]) {
        assert_eq!(reference(&text[..e.offset()]), Some(a));
    }
}

fuzz_target!(|text: &[u8]| {
    let got = parse(text);
    assert_eq!(got.ok(), reference(text), "{}", text.escape_ascii());
    let a = match got {
        Err(e) => return check_error(text, &e),
        Ok(a) => a,
    };
    assert_eq!(parse(&text.to_ascii_uppercase()), Ok(a));
    let mut wide = b"\t".to_vec();
    for &b in text {
        let sign = matches!(b, b':' | b'=' | b',');
        wide.extend(if sign { vec![b' ', b, b'\n'] } else { vec![b] });
    }
    wide.push(b' ');
    if wide.len() <= 4096 {
        assert_eq!(parse(&wide), Ok(a));
    }
    let anew = written(&a);
    assert_eq!(parse(anew.as_bytes()), Ok(a), "{anew}");
    if let EnvAllocator::Create { space, traits } = a {
        // Nothing is accepted that no allocator can be made of.
        let h = AllocatorBuilder::from_traits(space, traits).into_handle().expect("validated traits");
        routines::destroy_allocator(h);
    }
});
