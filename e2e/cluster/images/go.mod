module haproxy-fleet.dev/cluster/images

go 1.26
