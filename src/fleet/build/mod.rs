//! The Kubernetes objects that one `IngressDeployment` asks for. Pure.
