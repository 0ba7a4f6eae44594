//! Layouts, grouping, plan cache, host executor and kernel launch of `qsa_group`.
//!
//! Everything here is plain data and plain functions: no Python, no torch.

pub mod cache;
pub mod driver;
pub mod error;
pub mod group;
pub mod inputs;
pub mod launch;
pub mod layout;
pub mod refresh;
pub mod view;
