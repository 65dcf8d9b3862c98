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
            let wanted = EnvAllocator::Create { space, traits: Traits { pinned: true, ..Traits::default() } };
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
    let text = "omp_high_bw_mem_space:pool_size=1048576,fallback=allocator_fb,fb_data=omp_low_lat_mem_alloc";
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
        for word in ["bogus", "omp_default_mem_space", "omp_null_allocator", "-2", "+1", "- 1", "0x10", "1k"]
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
                    refused(&format!("omp_default_mem_space:{}=^{word}", t.name), word, Expected::Value(t));
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
    for name in ["alignment", "pool_size", "part_size", "partitioner_arg", "pin_device", "preferred_device"] {
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
    assert_eq!(line(b"omp_default_mem_space:pinned"), "byte 28: found the end, expected \"=\" after pinned");
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
        .chain([":", "=", ",", " ", "\t", "-1", "0", "64", "18446744073709551616", "default", PARTITIONER])
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
