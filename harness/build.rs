//! Scenarios, images and captures are compiled into the binary: it is rebuilt when they change.

fn main() {
    println!("cargo:rerun-if-changed=../scenarios");
    println!("cargo:rerun-if-changed=../images");
    println!("cargo:rerun-if-changed=../golden/captures");
}
