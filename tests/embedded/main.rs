//! The embedded engine against bad paths, damage and faults.
