//! The number of threads to compute with, on machines made of files.

use std::fs;
use std::path::{Path, PathBuf};

use kernels::topology::{
    allowed_processors, available_memory_bytes, default_threads, physical_cores, quota_processors,
};

/// A directory that stands in for the file system's root and goes away with the test.
struct Machine(PathBuf);

impl Machine {
    fn new(name: &str) -> Self {
        let root = std::env::temp_dir().join(format!("topology-{name}-{}", std::process::id()));
        fs::create_dir_all(&root).expect("temporary directory");
        Self(root)
    }

    fn with(self, path: &str, text: &str) -> Self {
        let file = self.0.join(path);
        fs::create_dir_all(file.parent().expect("a parent")).expect("directory");
        fs::write(file, text).expect("file");
        self
    }

    fn siblings(self, processor: usize, list: &str) -> Self {
        let path = format!("sys/devices/system/cpu/cpu{processor}/topology/thread_siblings_list");
        self.with(&path, list)
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn this_machine_has_a_number_of_threads() {
    let threads = default_threads();
    assert!(threads >= 1);
    assert!(threads <= allowed_processors().len().max(1));
}

#[test]
fn hardware_threads_of_a_core_count_once() {
    let machine = Machine::new("siblings")
        .siblings(0, "0,2\n")
        .siblings(1, "1,3\n")
        .siblings(2, "0,2\n")
        .siblings(3, "1,3\n");
    assert_eq!(physical_cores(&machine.0, &[0, 1, 2, 3]), 2);
    assert_eq!(physical_cores(&machine.0, &[0, 2]), 1);
    assert_eq!(physical_cores(&machine.0, &[3]), 1);
}

#[test]
fn a_processor_of_unknown_core_is_a_core() {
    let machine = Machine::new("unknown")
        .siblings(0, "0-1")
        .siblings(1, "0-1")
        .siblings(2, "");
    assert_eq!(physical_cores(&machine.0, &[0, 1, 2, 3, 4]), 4);
    assert_eq!(physical_cores(Path::new("/nowhere/at/all"), &[0, 1]), 2);
}

#[test]
fn without_files_there_is_no_quota() {
    let machine = Machine::new("bare");
    assert_eq!(quota_processors(&machine.0), None);
    let machine = machine.with("proc/self/cgroup", "0::/user.slice\n");
    assert_eq!(quota_processors(&machine.0), None);
}

#[test]
fn version_2_takes_the_least_of_the_group_and_those_above() {
    let machine = Machine::new("v2")
        .with("proc/self/cgroup", "0::/outer/inner\n")
        .with("sys/fs/cgroup/outer/inner/cpu.max", "max 100000\n");
    assert_eq!(quota_processors(&machine.0), None);
    let machine = machine.with("sys/fs/cgroup/outer/cpu.max", "250000 100000\n");
    assert_eq!(quota_processors(&machine.0), Some(2.5));
    let machine = machine.with("sys/fs/cgroup/outer/inner/cpu.max", "50000 100000\n");
    assert_eq!(quota_processors(&machine.0), Some(0.5));
}

#[test]
fn inside_a_container_the_mount_is_the_group() {
    let machine = Machine::new("container")
        .with("proc/self/cgroup", "0::/system.slice/not-visible-here\n")
        .with("sys/fs/cgroup/cpu.max", "400000 100000\n");
    assert_eq!(quota_processors(&machine.0), Some(4.0));
}

#[test]
fn version_1_reads_quota_and_period() {
    let machine = Machine::new("v1")
        .with(
            "proc/self/cgroup",
            "5:memory:/m\n4:cpu,cpuacct:/job\n0::/\n",
        )
        .with("sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us", "300000\n")
        .with(
            "sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_period_us",
            "100000\n",
        );
    assert_eq!(quota_processors(&machine.0), Some(3.0));
    let machine = machine.with("sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us", "-1\n");
    assert_eq!(quota_processors(&machine.0), None);
    let machine = machine
        .with("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "150000\n")
        .with("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
    assert_eq!(quota_processors(&machine.0), Some(1.5));
}

#[test]
fn nonsense_limits_nothing() {
    for text in [
        "",
        "\n",
        "max",
        "many 100000",
        "100000 0",
        "-5 100000",
        "100000",
        "NaN 100000",
    ] {
        let machine = Machine::new("nonsense")
            .with("proc/self/cgroup", "garbage\n::\n1:\n0::/\n")
            .with("sys/fs/cgroup/cpu.max", text);
        assert_eq!(quota_processors(&machine.0), None, "{text:?}");
    }
}

#[test]
fn available_memory_is_that_of_the_system_or_of_the_tightest_group() {
    let meminfo = "MemTotal:  200 kB\nMemAvailable:     100 kB\n";
    let machine = |name: &str| Machine::new(name).with("proc/meminfo", meminfo);
    assert_eq!(available_memory_bytes(&machine("free").0), Some(102_400.0));
    assert_eq!(available_memory_bytes(&Machine::new("nothing").0), None);
    let v2 = machine("memory-v2")
        .with("proc/self/cgroup", "0::/a/b\n")
        .with("sys/fs/cgroup/a/memory.max", "50000\n")
        .with("sys/fs/cgroup/a/memory.current", "20000\n")
        .with("sys/fs/cgroup/a/b/memory.max", "max\n")
        .with("sys/fs/cgroup/a/b/memory.current", "10000\n");
    assert_eq!(available_memory_bytes(&v2.0), Some(30_000.0));
    let v1 = machine("memory-v1")
        .with("proc/self/cgroup", "5:cpu:/x\n4:memory:/x\n")
        .with("sys/fs/cgroup/memory/x/memory.limit_in_bytes", "5000\n")
        .with("sys/fs/cgroup/memory/x/memory.usage_in_bytes", "6000\n");
    assert_eq!(available_memory_bytes(&v1.0), Some(0.0));
}
