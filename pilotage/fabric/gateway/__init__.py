"""What surrounds the job manager of a gateway: work comes, is kept alive, told of, and goes back."""
