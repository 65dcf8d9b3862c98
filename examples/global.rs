//! A program whose whole heap is pinned: it counts the words of files with several threads, in std's collections.
//!
//! `cargo run --release --example global [FILE...]`; without files it reads this package's own sources.
//!
//! `PinnedGlobal::prefer` keeps it running where the lock limit is small; with `require` in its place an allocation
//! beyond the limit fails, and nothing is ever unpinned.

use pinned_alloc::PinnedGlobal;
use pinned_alloc::os::procfs;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::{fs, io, thread};

#[global_allocator]
static HEAP: PinnedGlobal = PinnedGlobal::prefer();

fn sources(dir: &Path, into: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if path.is_dir() {
            sources(&path, into)?;
        } else if path.extension().is_some_and(|e| e == "rs" || e == "md") {
            into.push(path);
        }
    }
    Ok(())
}

fn count(files: &[PathBuf]) -> HashMap<String, usize> {
    let mut words = HashMap::new();
    for text in files.iter().filter_map(|f| fs::read_to_string(f).ok()) {
        for w in text.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|w| !w.is_empty()) {
            *words.entry(w.to_lowercase()).or_insert(0) += 1;
        }
    }
    words
}

fn main() -> io::Result<()> {
    let mut files: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    if files.is_empty() {
        let home = Path::new(env!("CARGO_MANIFEST_DIR"));
        for part in ["src", "tests"] {
            // What cannot be read here is left out; the count says how many files there were.
            let _ = sources(&home.join(part), &mut files);
        }
    }
    let part = files.len().div_ceil(4).max(1);
    let mut words: HashMap<String, usize> = HashMap::new();
    thread::scope(|s| {
        let counts: Vec<_> = files.chunks(part).map(|f| s.spawn(move || count(f))).collect();
        for c in counts {
            for (w, n) in c.join().unwrap_or_default() {
                *words.entry(w).or_insert(0) += n;
            }
        }
    });
    let mut by_count: Vec<_> = words.iter().collect();
    by_count.sort_by(|a, b| b.1.cmp(a.1).then(a.0.cmp(b.0)));
    let top: Vec<_> = by_count.iter().take(8).map(|(w, n)| format!("{w} {n}")).collect();
    println!("{} files, {} different words; most often: {}", files.len(), words.len(), top.join(", "));

    // Every block of the word list, held against the kernel.
    let s = HEAP.stats();
    let pinned = words.keys().filter(|w| HEAP.is_pinned(w.as_ptr())).count();
    println!("{} live blocks, {} bytes; locked for them: {} bytes", s.live_blocks, s.requested, s.locked);
    println!("{pinned} of {} words lie in pinned blocks; {} requests fell back", words.len(), s.fallbacks);
    if let Some(w) = words.keys().find(|w| HEAP.is_pinned(w.as_ptr())) {
        let page = w.as_ptr() as usize / 4096 * 4096;
        let facts = procfs::smaps_range(page, 4096).unwrap_or_default();
        println!("the kernel on the page of {w:?}: {} of 4096 bytes in locked mappings", facts.lo_flag_bytes);
        assert_eq!(facts.lo_flag_bytes, 4096);
    }
    println!("VmLck: {} bytes", procfs::vm_locked().unwrap_or(0));
    Ok(())
}
