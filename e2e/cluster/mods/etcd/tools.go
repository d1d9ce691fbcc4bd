//go:build tools

// Package tools pins the commands that the test cluster runs.
package tools

import (
	_ "go.etcd.io/etcd/server/v3"
)
