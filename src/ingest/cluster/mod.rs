//! Objects from a cluster: watches into the world.
