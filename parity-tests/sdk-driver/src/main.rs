//! The program `sdk-driver`. What it does is in the library, which the trials' own build of it has too.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    meerkat_sdk_driver::run()
}
