// Compiles the C++ half of the cxx bridge and leaves its headers under $CARGO_TARGET_DIR/cxxbridge.
fn main() {
    cxx_build::bridge("src/lib.rs").std("c++20").compile("fathom_bridge_cxx");
    println!("cargo:rerun-if-changed=src/lib.rs");
    println!("cargo:rerun-if-changed=include/encode_check.h");
}
