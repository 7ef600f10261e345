//! Turns on a scripted backend.
