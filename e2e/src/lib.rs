//! End-to-end suites against real parts.
