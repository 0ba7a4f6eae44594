//! The core of `qsa_group`: plain data and plain functions, without Python and without torch.
//!
//! A plan is made in this order: tensors become layouts ([`layout`]), layouts become groups ([`group`]), groups become a
//! [`blueprint`], and a blueprint becomes launches ([`launch`]). A call reads its [`inputs`] and starts the launches: by
//! the CUDA [`driver`], or on [`host`] memory.

pub mod blueprint;
pub mod cache;
pub mod contract;
pub mod driver;
pub mod error;
pub mod group;
pub mod host;
pub mod inputs;
pub mod launch;
pub mod layout;
pub mod tensor;
