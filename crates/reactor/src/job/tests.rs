//! Jobs in slots.
