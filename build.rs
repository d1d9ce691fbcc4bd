//! Compiles the messages of `proto/` in Rust alone: nobody needs a `protoc`.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto");
    let files = protox::compile(["proto/haproxy_fleet/v1/delivery.proto"], ["proto"])?;
    // what a resource holds may be a private key: `wire` writes its own `Debug`
    tonic_prost_build::configure().skip_debug([".haproxy_fleet.v1.Resource"]).compile_fds(files)?;
    Ok(())
}
