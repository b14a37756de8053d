"""Workers that run the chain: RQ workers, or a thread of the service without Redis."""
