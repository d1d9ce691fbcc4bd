//! A small in-process API server, and a fault layer under the kube client.
