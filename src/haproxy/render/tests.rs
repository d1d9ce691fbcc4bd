//! Tests of rendering.
