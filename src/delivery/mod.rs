//! Between the operator and the agents: bundles one way, acknowledgements and refusals the other.
