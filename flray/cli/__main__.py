from flray.cli import main

main()
