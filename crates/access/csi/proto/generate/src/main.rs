//! Makes `csi.v1.rs.in` of `csi.proto`.

use std::error::Error;
use std::fs;

fn main() -> Result<(), Box<dyn Error>> {
    let out = tempdir()?;
    tonic_prost_build::configure()
        .build_client(false)
        .build_transport(false)
        .disable_comments(["."])
        .out_dir(&out)
        .compile_fds(protox::compile(["csi.proto"], [".."])?)?;
    fs::copy(out.join("csi.v1.rs"), "../csi.v1.rs.in")?;
    fs::remove_dir_all(out)?;
    Ok(())
}

fn tempdir() -> std::io::Result<std::path::PathBuf> {
    let dir = std::env::temp_dir().join(format!("csi-{}", std::process::id()));
    fs::create_dir(&dir)?;
    Ok(dir)
}
