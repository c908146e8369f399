//! What is promised of this folder.
