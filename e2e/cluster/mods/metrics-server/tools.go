//go:build tools

// Package tools pins the command that the test cluster runs.
package tools

import (
	_ "sigs.k8s.io/metrics-server/cmd/metrics-server"
)
