//! Numbers that name things. All are 64 bits, never reused within a volume, and zero is never a
//! valid one.

use std::ops::Range;

/// Inode number of a file, directory or special file; what applications see in `st_ino`.
pub type InodeId = u64;

/// Number of an object in the block store.
pub type ObjectId = u64;

/// Number of a snapshot: the commit stamp at which it was made. Every change before it has a lower
/// one, every later change a higher one. Never reused within a volume.
pub type SnapshotId = u64;

/// Position in an engine's log: the sequence number of the last record it covers. Zero covers
/// nothing.
pub type Position = u64;

/// Number of a metadata node. Given once, never reused within a cluster.
pub type NodeId = u32;

/// The root directory of every volume.
pub const ROOT: InodeId = 1;

/// First inode number given to anything but the root.
pub const FIRST_INODE: InodeId = 16;

/// First object number of a volume.
pub const FIRST_OBJECT: ObjectId = 1;

/// Objects that a volume numbers itself are below this. What is above belongs to its jobs: each has
/// a part of the numbers for itself ([`objects_of_job`]).
pub const JOB_OBJECTS: ObjectId = 1 << 63;

/// Most jobs that a volume ever has.
pub const JOBS_MAX: u32 = (1 << (63 - JOB_OBJECT_BITS)) - 1;

/// Bits of an object number that a job counts.
const JOB_OBJECT_BITS: u32 = 40;

/// Numbers of the objects of the job with this number, at most [`JOBS_MAX`].
pub fn objects_of_job(job: u32) -> Range<ObjectId> {
    let first = JOB_OBJECTS | ObjectId::from(job) << JOB_OBJECT_BITS;
    first + FIRST_OBJECT..first | ((1 << JOB_OBJECT_BITS) - 1)
}

/// The job that an object belongs to; none: it is one of the volume's.
pub fn job_of_object(object: ObjectId) -> Option<u32> {
    (object >= JOB_OBJECTS).then_some(((object ^ JOB_OBJECTS) >> JOB_OBJECT_BITS) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Objects of jobs are apart from those of the volume and of each other.
    #[test]
    fn objects_of_jobs() {
        for job in [0, 1, 77, JOBS_MAX] {
            let objects = objects_of_job(job);
            assert_eq!(job_of_object(objects.start), Some(job));
            assert_eq!(job_of_object(objects.end), Some(job));
        }
        assert!(objects_of_job(1).end < objects_of_job(2).start);
        assert_eq!(objects_of_job(JOBS_MAX).end, u64::MAX);
        assert_eq!(job_of_object(JOB_OBJECTS - 1), None);
    }
}
