"""Take requests from the streams of a worker's services, under the fence that proves whose they are."""
