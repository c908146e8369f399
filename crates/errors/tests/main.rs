//! The table of errors, and the pages of its codes.

mod pages;
mod table;
